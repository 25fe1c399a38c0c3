//! Properties of translations, on random programs and packets.

mod bridges;
mod soundness;
