//! Messages for operators, on standard error.

use tracing_subscriber::EnvFilter;

/// Shows messages from `info` on, or what `WEFT_LOG` says (`debug`, `datapath=trace`, ...).
pub fn init() {
    let filter = EnvFilter::try_from_env("WEFT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        .init();
}
