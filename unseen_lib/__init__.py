"""To see the unseen: why a transformer that reasons well fails on names it was never trained on.

One module for each idea, from the ground up: ``logic`` (problems and proofs), ``language`` (how they are
written), ``vocabulary`` (words and ids), ``model``, ``collapse``, ``problems``, ``embeddings``, ``training``,
``evaluation`` and ``experiments``; ``pretrained`` looks at published models. Importing this package imports
none of them.
"""

__version__ = "0.1.0"
