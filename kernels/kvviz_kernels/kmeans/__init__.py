"""The two steps of Lloyd's k-means: assign keys to centroids, sum the keys of each cluster."""
