//! The interface of the BPF programs: layouts and constants of `bpf/intf.h`, generated from the
//! compiler's type information by `build.rs`. The names are those of the C side.

/// The skeleton contains `unsafe` for memory that it shares with the kernel, and ignores lints.
#[allow(unsafe_code, warnings, missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/control.skel.rs"));
}

/// Some constants are for the programs and the tests alone.
#[allow(dead_code, missing_docs)]
mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}

pub(crate) use constants::*;
pub(crate) use skeleton::types::{
    weft_action, weft_action_list, weft_class, weft_config, weft_control, weft_device,
    weft_drop_key, weft_endpoint, weft_endpoint_range, weft_endpoint_update, weft_flow,
    weft_flow_stats, weft_flow_stats_page, weft_key, weft_local, weft_lookup_stats, weft_mask_list,
    weft_port, weft_port_stats, weft_tag_link, weft_tag_link_key, weft_token_bucket,
};
