//! Child processes that end with their parent.

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel kill the child (SIGKILL) when the thread that spawned it ends, however it ends.
/// The thread therefore has to outlive the child.
#[must_use = "the command has yet to be spawned"]
pub fn killed_with_parent(mut command: Command) -> Command {
    let parent = Pid::this();
    let follow = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have ended already; then the kernel would send no signal.
        if getppid() == parent { Ok(()) } else { Err(io::Error::from(nix::errno::Errno::ESRCH)) }
    };
    // SAFETY: between fork and exec the closure makes two system calls. It neither allocates nor
    // takes a lock, also on failure: an `io::Error` made from an errno is a plain value.
    unsafe { command.pre_exec(follow) };
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Stdio;

    #[test]
    fn child_is_killed_when_the_thread_that_spawned_it_has_ended() {
        let spawn = || {
            let mut command = Command::new("sleep");
            command.arg("1000").stdout(Stdio::piped());
            killed_with_parent(command).spawn().unwrap()
        };
        let mut child = std::thread::spawn(spawn).join().unwrap();
        // The output ends when the child ends: if it were not killed, this would block.
        let mut output = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }
}
