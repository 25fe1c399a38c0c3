//! Writes the seed corpora: `cargo xtask fuzz-seeds`.

use std::fs;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    if corpus.exists() {
        fs::remove_dir_all(&corpus)?;
    }
    for seed in weft_fuzz::seeds::all() {
        fs::create_dir_all(corpus.join(seed.target))?;
        fs::write(corpus.join(seed.target).join(seed.name), seed.bytes)?;
    }
    Ok(())
}
