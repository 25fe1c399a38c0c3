/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How words of a key are made from the bytes of a frame. */
#pragma once

#include "vmlinux.h"

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "intf.h"

/*
 * Bytes in network order as a number. Headers are not aligned; the architectures that weft runs on
 * read them all the same, and the verifier knows which those are.
 */
static __always_inline __u16 be16(const void *at)
{
	return bpf_ntohs(*(const __u16 *)at);
}

static __always_inline __u32 be32(const void *at)
{
	return bpf_ntohl(*(const __u32 *)at);
}

static __always_inline __u64 be64(const void *at)
{
	return bpf_be64_to_cpu(*(const __u64 *)at);
}

/* A field of 6 bytes at the start of 8, left aligned. */
static __always_inline __u64 be48(const void *at)
{
	return be64(at) & ~0xffffULL;
}

/* flow::extract's Field::IpProto to Field::Ip6Label. */
static __always_inline __u64 ip_word(__u64 proto, __u64 tos, __u64 ttl, __u64 frag, __u64 label)
{
	return proto << 56 | tos << 48 | ttl << 40 | frag << 32 | label;
}

/* A tag as a key has it: DEI makes way for a bit that says that there is a tag. */
static __always_inline __u64 tag_word(__u64 tpid, __u64 tci)
{
	return tpid << 16 | (tci & 0xffff) | 0x1000;
}

/*
 * What a decapsulator knows. At least one of the words but the first is not 0, whatever the tunnel:
 * there are addresses, or the flag that says that there is a key. Userspace tells by that whether
 * there is a tunnel.
 */
struct tunnel {
	__u64 shape;		/* WEFT_TUNNEL, perhaps with WEFT_TUNNEL6 */
	__u64 id;
	__u64 flags;		/* as in struct weft_key */
	__u64 metadata;
	__u64 addr[4];		/* the last three are 0 without WEFT_TUNNEL6 */
};

static __always_inline void key_tunnel(struct weft_key *key, const struct tunnel *tunnel)
{
	key->port |= tunnel->shape;
	key->tun_id = tunnel->id;
	key->tun_flags = tunnel->flags;
	key->tun_metadata = tunnel->metadata;
	key->tun_addr[0] = tunnel->addr[0];
	key->tun_addr[1] = tunnel->addr[1];
	key->tun_addr[2] = tunnel->addr[2];
	key->tun_addr[3] = tunnel->addr[3];
}
