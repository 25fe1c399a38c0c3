//! Tests of the programs with Debian's kernel, in a virtual machine. That kernel is older than 6.4,
//! so the programs read the state of a checksum with a helper.

use crate::common::debian;

#[test]
fn programs_refuse_checksums_and_unknown_senders_under_debians_kernel() {
    testkit::require_vm!();
    let mut vm = debian();
    vm.run("mount -t tmpfs run /run");
    let tests = "veth::frames_are_punted_when_completing_their_checksum_changes_the_key \
                 unknown_senders::";
    let (code, printed) = vm.try_run(&format!("/bin/program {tests} --test-threads 1"));
    println!("Linux {}{printed}", vm.run("uname -r"));
    assert!(code == 0 && printed.contains("5 passed"), "{printed}");
}
