"""The parts of ``moe_lm.py``: text, model, training, picture."""
