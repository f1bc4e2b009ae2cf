//! The programs are in the binary target. This target lets other packages depend on the source.
#![no_std]
