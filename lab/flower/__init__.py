"""Any algorithm across a network: a ServerApp and a ClientApp of Flower around the same round loop.

The server runs an experiment as it is run in one process, but that its clients are elsewhere; a
node runs what the algorithm runs for one client. All that crosses the network is a `Message`.
Flower is needed where `server` or `client` of this package is imported, and nowhere else.
"""
