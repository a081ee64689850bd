"""Compiled programs kept on disk, so that the next process that needs one has it at once."""

from pathlib import Path

import jax

from cnnkit.data.files import user_cache


def keep_compiled(folder: str | Path | None = None) -> Path:
    """Keep what is compiled from now on, and take from there what was compiled before.

    Programs are told apart by what they compute, the versions of JAX and its backend, and the device. Call it
    before anything is compiled. JAX_COMPILATION_CACHE_DIR, set before Python starts, does the same.

    Args:
        folder: where; ``compiled`` in the user's cache of cnnkit when left out.

    Returns:
        the folder.

    Raises:
        OSError: it cannot be made.
    """
    where = Path(folder).expanduser() if folder is not None else user_cache() / "compiled"
    where.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(where.absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return where
