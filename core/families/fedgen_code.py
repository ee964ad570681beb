"""What several methods of FedGen's repository share (Zhu, Hong, Zhou. ICML 2021; code:
zhuangdizhu/FedGen).
"""

from __future__ import annotations

from typing import Any

#: local training: 20 local batches of 32 by plain SGD (its decay of the learning rate, 0.99 a round,
#: is left out; there passes go on from round to round, and since January 2022, when that code began to
#: shuffle, batches that are not whole are dropped)
LOCAL: dict[str, Any] = {
    "batch_size": 32,
    "local_steps": 20,
    "momentum": 0.0,
    "weight_decay": 0.0,
}
