//! Opens files that a user names, without waiting.
//!
//! Opening a FIFO waits for a writer, perhaps for good, and opening a device can have effects.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file for reading. Follows symbolic links.
///
/// # Errors
/// The file cannot be opened, or is not a regular file. In the second case, the error says what it
/// is, and its kind is [`ErrorKind::InvalidInput`].
pub fn open(path: &Path) -> io::Result<File> {
    check(fs::metadata(path)?.file_type())?;
    // O_NONBLOCK: a FIFO may have replaced the file since the check. Reads from regular files
    // ignore the flag.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    check(file.metadata()?.file_type())?;
    Ok(file)
}

fn check(file_type: FileType) -> io::Result<()> {
    if file_type.is_file() {
        return Ok(());
    }
    let kind = match file_type {
        found if found.is_dir() => "a directory",
        found if found.is_fifo() => "a pipe (FIFO)",
        found if found.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {kind}, not a regular file")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn open_returns_at_once_and_names_the_kind_when_the_file_is_not_regular() {
        let folder = std::env::temp_dir().join(format!("weft-regular-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        mkfifo(&path("fifo"), Mode::S_IRWXU).unwrap();
        symlink("fifo", path("link")).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        let error_text = |path: &Path| open(path).map(|_| ()).map_err(|error| error.to_string());
        let not_regular = |kind: &str| Err(format!("it is {kind}, not a regular file"));
        assert_eq!(error_text(&path("fifo")), not_regular("a pipe (FIFO)"));
        assert_eq!(error_text(&path("link")), not_regular("a pipe (FIFO)"));
        assert_eq!(error_text(&path("socket")), not_regular("a socket"));
        assert_eq!(error_text(&folder), not_regular("a directory"));
        assert_eq!(error_text(Path::new("/dev/null")), not_regular("a device"));
        let missing = open(&path("missing")).map(|_| ()).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        fs::write(path("text"), "text").unwrap();
        let mut text = String::new();
        open(&path("text")).unwrap().read_to_string(&mut text).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(text, "text");
    }
}
