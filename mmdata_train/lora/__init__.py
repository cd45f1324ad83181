"""Low-rank adapters: which linear layers get one, how it is split over ranks, and PEFT's folders in and out."""
