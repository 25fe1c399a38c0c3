//! Files that are written completely or not at all.

use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Replaces the content of the file `path` by `text`. A symbolic link is followed and kept. A path
/// that is not a regular file, such as `/dev/null`, is written to directly.
///
/// # Errors
/// The error of the file system; the file then keeps its old content.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let path = target(path);
    if !is_file_or_new(&path) {
        return fs::write(&path, text);
    }
    let part = part(&path);
    fs::write(&part, text).and_then(|()| fs::rename(&part, &path))
}

/// Checks in advance whether [`write()`] can succeed. Later errors, such as a full disk, remain
/// possible.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let path = target(path);
    if fs::metadata(&path).is_ok_and(|is| is.file_type().is_fifo()) {
        // Opening a FIFO for a check would signal an end of file to its reader.
        return Ok(());
    }
    if !is_file_or_new(&path) {
        return fs::OpenOptions::new().write(true).open(&path).map(drop);
    }
    let part = part(&path);
    fs::write(&part, "").and_then(|()| fs::remove_file(&part))
}

/// The target of a symbolic link. If the link points to a missing file, only that one link is
/// followed.
fn target(path: &Path) -> PathBuf {
    let led_to = |link: PathBuf| path.parent().unwrap_or(Path::new("")).join(link);
    fs::canonicalize(path)
        .or_else(|_| fs::read_link(path).map(led_to))
        .unwrap_or_else(|_| path.to_owned())
}

fn is_file_or_new(path: &Path) -> bool {
    fs::metadata(path).map_or(true, |is| is.is_file())
}

fn part(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".part");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn symbolic_links_and_devices_are_not_replaced() {
        let directory = std::env::temp_dir().join(format!("weft-file-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (file, link) = (directory.join("a.json"), directory.join("link.json"));
        symlink("a.json", &link).unwrap();
        check(&link).unwrap();
        write(&link, "one").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "one", "there was no such file");
        write(&link, "two").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "no part is left");

        let null = Path::new("/dev/null");
        check(null).unwrap();
        write(null, "three").unwrap();
        assert!(fs::metadata(null).unwrap().file_type().is_char_device());

        let nowhere = directory.join("none/a.json");
        assert!(check(&nowhere).is_err() && write(&nowhere, "").is_err());
        assert!(check(&directory).is_err() && write(&directory, "").is_err());
        fs::remove_dir_all(&directory).unwrap();
    }
}
