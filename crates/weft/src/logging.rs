//! Log messages on standard error.

use tracing_subscriber::EnvFilter;

/// Logs messages of level `info` and above, or those that the filter in `WEFT_LOG` selects.
pub fn init() {
    let filter = EnvFilter::try_from_env("WEFT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        .init();
}
