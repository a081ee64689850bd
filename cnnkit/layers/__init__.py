"""The single-GPU core: layers as (init, apply) pairs, and their combinators."""
