//! Unix stream sockets that only their owner may open, or a group as well.

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockopt, listen, socket,
};
use nix::sys::stat::{Mode, fchmod, umask};
use nix::unistd::{Group, geteuid};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Listens at `path`. The socket file has mode 0600 from the start, less the bits of the umask.
///
/// Setting the mode after bind would leave a time in which others may connect, and a temporary
/// umask would apply to all threads. On Linux, the file takes over the mode of the socket.
///
/// # Errors
/// As bind(2), for example when the file exists.
pub fn listen_private(path: &Path) -> io::Result<UnixListener> {
    let address = UnixAddr::new(path)?;
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &address)?;
    listen(&socket, Backlog::MAXCONN)?;
    Ok(UnixListener::from(socket))
}

/// Makes all files that this process creates from now on writable by their owner only, whatever
/// mode they are created with. That includes sockets: other users cannot connect to them.
pub fn restrict_new_files_to_owner() {
    let others = Mode::S_IWGRP | Mode::S_IWOTH;
    let before = umask(others);
    umask(before | others);
}

/// The number of the group with this name.
///
/// # Errors
/// There is no such group, or the user database cannot be read.
pub fn group(name: &str) -> io::Result<u32> {
    let group = Group::from_name(name)?;
    let missing = || io::Error::new(io::ErrorKind::NotFound, "there is no such group");
    Ok(group.ok_or_else(missing)?.gid.as_raw())
}

/// Lets the members of `group`, in addition to its owner, connect to the socket at `path`. The
/// directory of the socket must be writable for its owner only.
///
/// # Errors
/// The process is neither a member of the group nor has `CAP_CHOWN`.
pub fn open_to_group(path: &Path, group: u32) -> io::Result<()> {
    // Changes the group before the mode, so that no other group gets access.
    lchown(path, None, Some(group))?;
    fs::set_permissions(path, Permissions::from_mode(0o660))
}

/// True if the process at the other end runs as root or as the user of this process.
///
/// # Errors
/// As getsockopt(2).
pub fn is_peer_trusted(stream: &UnixStream) -> io::Result<bool> {
    let peer = getsockopt(stream, PeerCredentials)?.uid();
    Ok(peer == 0 || peer == geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::stat::umask;

    #[test]
    fn socket_is_private_from_the_start_when_the_umask_is_0() {
        let folder = std::env::temp_dir().join(format!("weft-unix-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (private, open) = (folder.join("private"), folder.join("open"));
        let listeners = std::thread::scope(|scope| {
            let listen = || {
                // The umask of this thread alone.
                unshare(CloneFlags::CLONE_FS).unwrap();
                umask(Mode::empty());
                (listen_private(&private).unwrap(), UnixListener::bind(&open).unwrap())
            };
            scope.spawn(listen).join().unwrap()
        });
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let modes = [mode(&private), mode(&open)];
        UnixStream::connect(&private).unwrap();
        listeners.0.accept().unwrap();
        let again = listen_private(&private).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(modes, [0o600, 0o777], "bind alone sets the mode");
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
    }
}
