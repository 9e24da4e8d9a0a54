"""Look at the token embeddings of a published model, without loading it, and repair rows that collapsed.

``files`` reads parts of a folder, here or on the hub; ``tables`` finds the embedding and reads rows of it;
``tokens`` says which ids no text uses; ``audit`` measures their rows and judges; ``repair`` draws rows anew.
"""
