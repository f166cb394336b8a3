"""``python -m research.data`` makes the stored tiers of the embedded digits anew."""

from research.data.tiers import write_tiers

write_tiers()
