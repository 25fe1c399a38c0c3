//! Unix stream sockets that only their owner may open.

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
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

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::stat::umask;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

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
