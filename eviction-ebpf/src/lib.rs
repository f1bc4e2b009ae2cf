//! The programs are in the binary target; this one lets other packages depend on the source.
#![no_std]
