//! What must not reach a guest: real packets, written by hand and sent over the wire to a running daemon. Each is dropped and
//! counted under its name, the guest sees nothing of it, and what is good still arrives afterwards.

mod geneve;
mod gre;
mod guests;
mod stt;
mod tags;
mod target;
mod vxlan;
