//! scratch
mod common;
use common::lookup::Lookup;
use datapath_bpf::Sizes;
#[test]
fn scratch() {
    let t = std::time::Instant::now();
    let l = Lookup::load(Sizes { flows: 3000, cached: 256 });
    eprintln!("load {:?}", t.elapsed());
    for p in libbpf_rs::query::ProgInfoIter::default() {
        eprintln!("{:?} id {} verified {} jited {}", p.name, p.id, p.verified_insns, p.jited_prog_insns.len());
    }
    drop(l);
}
