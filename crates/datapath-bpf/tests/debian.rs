//! Tests of the programs with Debian's kernel, in a virtual machine. There, the programs read the
//! state of a checksum in another way than with a newer kernel.

use std::path::Path;
use testkit::host::TestHost;
use testkit::vm::{Extra, Vm};

#[test]
fn programs_refuse_checksums_and_unknown_senders_under_debians_kernel() {
    testkit::require_vm!();
    let host = TestHost::new("debian");
    let program = std::env::current_exe().expect("this program has a path");
    let programs = [("/bin/program", Path::new(&program))];
    let modules = ["veth", "sch_ingress", "cls_bpf"];
    let mut vm =
        Vm::counting_with(&host, &Extra { programs: &programs, files: &[], modules: &modules });
    vm.run("mount -t tmpfs run /run");
    let tests = "veth::frames_are_punted_when_completing_their_checksum_changes_the_key \
                 unknown_senders::";
    let (code, printed) = vm.try_run(&format!("/bin/program {tests} --test-threads 1"));
    println!("Linux {}{printed}", vm.run("uname -r"));
    assert!(code == 0 && printed.contains("4 passed"), "{printed}");
}
