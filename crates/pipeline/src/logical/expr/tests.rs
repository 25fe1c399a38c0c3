//! Tables of texts, and properties.
