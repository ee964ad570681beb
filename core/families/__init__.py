"""What several algorithms share: condensing, one upload only, public images, generators."""
