//! `weft demo`.
use crate::Failure;
/// Demo.
#[derive(clap::Args)]
pub struct Args {}
pub fn demo(_: Args) -> Result<(), Failure> {
    Ok(())
}
