//! The names of the targets, which are also the names of their corpora.

use crate::{
    actions, coalescing, execution, expressions, headers, keys, megaflows, network, ofctl, offload,
    probes, reassembly, tunnels,
};

/// Runs a target with one input. Panics if the input reveals a fault.
pub type Body = fn(&[u8]);

/// All targets, sorted by name.
pub const ALL: [(&str, Body); 17] = [
    ("coalesce", |bytes| {
        let _ = coalescing::list(bytes);
    }),
    ("execute", |bytes| {
        let _ = execution::frame(bytes);
    }),
    ("flow_key", |bytes| {
        let _ = keys::frame(bytes);
    }),
    ("geneve", |bytes| {
        let _ = tunnels::geneve(bytes);
    }),
    ("gre", |bytes| {
        let _ = tunnels::gre(bytes);
    }),
    ("logical_actions", |bytes| {
        let _ = actions::text(bytes);
    }),
    ("logical_match", |bytes| {
        let _ = expressions::text(bytes);
    }),
    ("megaflow_cache", |bytes| {
        let _ = megaflows::steps(bytes);
    }),
    ("network_toml", |bytes| {
        let _ = network::file(bytes);
    }),
    ("ofctl_flows", |bytes| {
        let _ = ofctl::file(bytes);
    }),
    ("offload", |bytes| {
        let _ = offload::frame(bytes);
    }),
    ("probe", |bytes| {
        let _ = probes::frame(bytes);
    }),
    ("stt", |bytes| {
        let _ = tunnels::stt(bytes);
    }),
    ("stt_reassembly", |bytes| {
        let _ = reassembly::list(bytes);
    }),
    ("vlan", |bytes| {
        let _ = tunnels::tagged(bytes);
    }),
    ("vxlan", |bytes| {
        let _ = tunnels::vxlan(bytes);
    }),
    ("wire_frame", |bytes| {
        let _ = headers::frame(bytes);
    }),
];

/// The body of a target; `None` if there is no target of that name.
pub fn body(name: &str) -> Option<Body> {
    ALL.iter().find(|(target, _)| *target == name).map(|(_, body)| *body)
}
