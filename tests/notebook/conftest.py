"""The notebook's tests find what stands for NVML and for a frontend beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
