//! Tests the rejection of SCTP packets.

use crate::common::{Daemon, Datapath, Lab, Setup};
use crate::peers::program::run;
use crate::peers::scapy::python;
use testkit::crc32c::crc32c;
use testkit::require_root;

/// An ACL that rejects SCTP to the second guest.
const ACL: &str = "[[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 900\n\
                   match = 'outport == \"g2\" && sctp'\naction = \"reject\"\n";

/// A script that sends an INIT from port 4000 to port 80 with the initiate tag 0x0a0b0c0d, and
/// prints the response.
const ASK: &str = "
import socket, sys
address = sys.argv[1]
family = socket.AF_INET6 if ':' in address else socket.AF_INET
s = socket.socket(family, socket.SOCK_RAW, 132)
s.settimeout(10)
init = bytes.fromhex('0fa00050' '00000000' '00000000' '01000014' '0a0b0c0d' + '00' * 12)
s.sendto(init, (address, 0))
answer = s.recv(2048)
print(answer.hex() if ':' in address else answer[(answer[0] & 15) * 4:].hex())
";

#[test]
fn rejected_association_is_aborted() {
    require_root!();
    for datapath in Datapath::BOTH {
        let setup = Setup::new("geneve").guests(1, 1).datapath(datapath).more(ACL);
        let lab = Lab::new(setup);
        let daemons = lab.start_both();
        let (near, far) = lab.ends();
        for family in [4, 6] {
            let mut ask = near.netns.command(python());
            ask.args(["-c", ASK, &far.ip(family).to_string()]);
            let hex = run(ask, b"");
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
            let answer: Vec<u8> = (0..hex.trim().len()).step_by(2).map(byte).collect();
            // The response has the ports of the INIT in reverse order, and the tag of the INIT.
            assert_eq!(hex[..16], *"00500fa00a0b0c0d", "{datapath:?} IPv{family}");
            assert_eq!(answer[12..], [6, 0, 0, 4], "{datapath:?} IPv{family}");
            let mut unsummed = answer.clone();
            unsummed[8..12].fill(0);
            assert_eq!(answer[8..12], crc32c(&unsummed).to_le_bytes());
        }
        daemons.into_iter().for_each(Daemon::stop);
    }
}
