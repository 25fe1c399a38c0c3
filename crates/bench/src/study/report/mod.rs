//! Reports of a run: Markdown, HTML, three sentences, and a comparison of two runs.

mod chart;
mod compare;
mod findings;
mod html;
mod markdown;
mod published;

pub use compare::{Change, Comparison, compare};
pub use findings::findings;
pub use html::html;
pub use markdown::markdown;
pub use published::{Published, published};
