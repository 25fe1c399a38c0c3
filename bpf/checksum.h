/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The sum of an inner packet, for the outer UDP checksum.
 *
 * Most packets of a guest are CHECKSUM_PARTIAL: a device will fill in the inner checksum. Then the
 * part that the inner checksum covers has a known sum, and headers alone give the outer checksum
 * (local checksum offload). Other packets (pings, fragments, ARP, packets that the guest forwards)
 * are summed byte by byte.
 */
#pragma once

#include "vmlinux.h"

#include <bpf/bpf_core_read.h>

#include "rewrite.h"

/* Folds the sum of fewer than 32,768 32-bit numbers to 16 bits. */
static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/*
 * The checksum that a device will fill in (CHECKSUM_PARTIAL). Its offsets are relative to the MAC
 * header. They may be negative, because a sender chooses them, and the kernel moves the MAC header
 * when it moves a tag to the metadata.
 */
struct partial_csum {
	__s32 start;	/* first byte that it covers */
	__s32 field;	/* where it is stored */
};

/* Bytes of struct sk_buff from `ip_summed` on that include `csum_start` and `csum_offset`. */
#define CSUM_SPAN 16

#define field_info(member, what) __builtin_preserve_field_info(((struct sk_buff *)0)->member, what)
#define offset_from_ip_summed(member) \
	(field_info(member, BPF_FIELD_BYTE_OFFSET) - field_info(ip_summed, BPF_FIELD_BYTE_OFFSET))

enum csum_state {
	CSUM_DONE,
	/* CHECKSUM_PARTIAL. */
	CSUM_PENDING,
	/* The read failed, or this kernel's struct sk_buff has the members elsewhere. */
	CSUM_UNKNOWN,
};

/* Converts the context to a typed pointer, whose members a program reads without a helper. */
extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/*
 * Whether the kernel has bpf_cast_to_kern_ctx(), which is slightly older than dynptrs for packets.
 * The result is a constant for the verifier, so it does not explore the other branch.
 */
static __always_inline bool has_kernel_context(void)
{
	return bpf_core_enum_value_exists(enum bpf_dynptr_type, BPF_DYNPTR_TYPE_SKB);
}

/*
 * Reads the checksum state of a packet, which struct __sk_buff does not contain. Before Linux 6.4
 * that needs a helper, whose cost grows with the number of bytes read. So `mac_header`, which is
 * farther away in struct sk_buff, is read only if there is a partial checksum.
 */
static __always_inline enum csum_state read_partial_csum(struct __sk_buff *ctx,
							 struct partial_csum *csum)
{
	__u32 start = offset_from_ip_summed(csum_start);
	__u32 offset = offset_from_ip_summed(csum_offset);
	__u64 part[CSUM_SPAN / 8], summed;
	struct sk_buff *skb;
	__u16 mac;

	if (has_kernel_context()) {
		skb = bpf_cast_to_kern_ctx(ctx);
		if (BPF_CORE_READ_BITFIELD(skb, ip_summed) != CHECKSUM_PARTIAL)
			return CSUM_DONE;
		csum->start = (__s16)(skb->csum_start - skb->mac_header);
		csum->field = csum->start + skb->csum_offset;
		return CSUM_PENDING;
	}
	if (bpf_probe_read_kernel(part, sizeof(part),
				  (void *)ctx + field_info(ip_summed, BPF_FIELD_BYTE_OFFSET)))
		return CSUM_UNKNOWN;
	summed = part[0] << field_info(ip_summed, BPF_FIELD_LSHIFT_U64) >>
		 field_info(ip_summed, BPF_FIELD_RSHIFT_U64);
	if (summed != CHECKSUM_PARTIAL)
		return CSUM_DONE;
	if (start > CSUM_SPAN - 2 || offset > CSUM_SPAN - 2)
		return CSUM_UNKNOWN;
	if (bpf_probe_read_kernel(&mac, sizeof(mac),
				  (void *)ctx + field_info(mac_header, BPF_FIELD_BYTE_OFFSET)))
		return CSUM_UNKNOWN;
	csum->start = (__s16)(*(const any16 *)((void *)part + start) - mac);
	csum->field = csum->start + *(const any16 *)((void *)part + offset);
	return CSUM_PENDING;
}

/* Bytes that are summed at once: bpf_csum_diff() takes whole words, and at most 512 bytes. */
#define PIECE_LEN 512
#define PIECES ((WEFT_MAX_PLAIN_LEN + PIECE_LEN - 1) / PIECE_LEN)

struct weft_sum_buffer {
	__be32 words[PIECE_LEN / sizeof(__be32)];
};

/* Too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct weft_sum_buffer);
	__uint(max_entries, 1);
} weft_sum_buffer __weak SEC(".maps");

/* Pieces that one call adds: the verifier checks the loop body once per iteration. */
#define PIECES_AT_ONCE 4

/* Adds at most PIECES_AT_ONCE pieces, as sum_bytes(). */
__weak int sum_pieces(struct __sk_buff *skb, __u32 at, __u32 end, __u64 *sum)
{
	__u32 none = 0, i, behind, words;
	struct weft_sum_buffer *piece = bpf_map_lookup_elem(&weft_sum_buffer, &none);
	__s64 added;

	if (!sum || !piece)
		return false;
#pragma clang loop unroll(disable)
	for (i = 0; i < PIECES_AT_ONCE; i++) {
		if (at >= end)
			return true;
		/* Bytes after the first, so that the verifier sees that there is one. */
		behind = end - at - 1;
		if (behind >= PIECE_LEN)
			behind = PIECE_LEN - 1;
		behind = forget(behind) & (PIECE_LEN - 1);
		words = behind / sizeof(__be32);
		/* Pads the last word of an odd length. */
		piece->words[words] = 0;
		if (bpf_skb_load_bytes(skb, at, piece, behind + 1))
			return false;
		added = bpf_csum_diff(0, 0, piece->words, (words + 1) * sizeof(__be32), 0);
		if (added < 0)
			return false;
		*sum += added;
		at += behind + 1;
	}
	return true;
}

/* Adds the bytes from `at` to `end`, linear or not, to a sum. Returns false on an error. */
__weak int sum_bytes(struct __sk_buff *skb, __u32 at, __u32 end, __u64 *sum)
{
	__u32 i;

	if (!sum)
		return false;
#pragma clang loop unroll(disable)
	for (i = 0; i < (PIECES + PIECES_AT_ONCE - 1) / PIECES_AT_ONCE; i++) {
		if (at >= end)
			return true;
		if (!sum_pieces(skb, at, end, sum))
			return false;
		at += PIECES_AT_ONCE * PIECE_LEN;
	}
	return at >= end;
}

/*
 * Recognizes CHECKSUM_PARTIAL by the packet alone: until a device fills it in, the checksum field
 * of TCP or UDP contains the folded sum of the pseudo header. If so, adds the sum that the IP
 * packet of `len` bytes will have and returns true.
 *
 * One in 65,536 complete checksums looks like that by chance. A correct one gives the same sum. For
 * an incorrect one the outer checksum becomes incorrect, too, and the receiver may drop the packet
 * instead of delivering it with its incorrect inner checksum.
 */
static __always_inline bool sum_by_pseudo_header(const __u8 *ip, const void *end, __u32 len,
						 bool is_ip6, __u64 *sum)
{
	const __be32 *words = (const void *)ip;
	__u32 header = is_ip6 ? IP6_LEN : IP4_LEN, i;
	const __be16 *field;
	__u64 addresses = 0;
	__u16 pseudo;
	__u8 proto;

	if ((const void *)ip + header > end)
		return false;
	if (is_ip6) {
		if (ip[0] >> 4 != 6 || be16(ip + 4) + IP6_LEN != len)
			return false;
		proto = ip[6];
	} else {
		if (ip[0] != 0x45 || be16(ip + 2) != len || be16(ip + 6) & (IP4_OFFSET | IP4_MORE))
			return false;
		proto = ip[9];
	}
	if (proto != PROTO_TCP && proto != PROTO_UDP)
		return false;
	field = (const void *)ip + header + (proto == PROTO_TCP ? TCP_SUM : UDP_SUM);
	if ((const void *)(field + 1) > end)
		return false;
	/* The checksum does not cover bytes that follow the datagram in the IP packet. */
	if (proto == PROTO_UDP && be16((const void *)ip + header + 4) != len - header)
		return false;
#pragma clang loop unroll(full)
	for (i = is_ip6 ? 2 : 3; i < (is_ip6 ? IP6_LEN : IP4_LEN) / 4; i++)
		addresses += words[i];
	pseudo = fold(addresses + bpf_htons(proto) + bpf_htons(len - header));
	if (*field != pseudo)
		return false;
	addresses += (__u64)words[0] + words[1] + (__u16)~pseudo;
	*sum += is_ip6 ? addresses : addresses + words[2];
	return true;
}

/* Offset of SCTP's checksum, a CRC, which does not give the sum of the bytes. */
#define SCTP_SUM 8
#define ICMP_SUM 2
/* Longer than a TCP header with all its options. */
#define TCP_MAX_LEN 60

/* Offset of the transport header of an IP packet, behind its extension headers; 0 on failure. */
static __always_inline __u32 find_l4(struct __sk_buff *skb, const struct weft_key *key, __u32 l3)
{
	void *ip = (void *)(long)skb->data + l3, *end = (void *)(long)skb->data_end;
	struct upper_layer upper = {};

	if (l3_shape(key) == WEFT_L3_IP4)
		return ip + IP4_LEN > end ? 0 : l3 + (*(const __u8 *)ip & 0x0f) * 4;
	if (ip + IP6_LEN > end)
		return 0;
	if (*(const __u8 *)(ip + 6) == ip_proto(key))
		return l3 + IP6_LEN;
	return walk_extensions(skb, l3, IP6_LEN + be16(ip + 4), &upper) ? 0 : l3 + upper.at;
}

/* The place of a partial checksum in a frame. */
enum partial_place {
	PARTIAL_MISPLACED = 0,
	/* There is none, or it is that of the frame's own transport header. */
	PARTIAL_OWN = 1,
	/*
	 * Inside a tunnel that the guest terminates. Then the frame's own checksum is complete, but
	 * helpers would update it as if it were partial.
	 */
	PARTIAL_INSIDE = 2,
};

/*
 * Whether a partial checksum can be completed after the lookup, as may_stay_partial() in userspace
 * (crates/packet/src/checksum.rs). The sender chooses where it is stored. So it must be that of the
 * frame's own transport header, or be behind all headers that a key contains, as inside a tunnel
 * that the guest terminates. Completing any other one could change an address or port that the
 * lookup has read. `l3`: offset of layer 3 in the skb. `start` and `field`: members of struct
 * partial_csum. Returns an enum partial_place.
 */
__weak int may_stay_partial(struct __sk_buff *skb, const struct weft_key *key, __u32 l3,
			    __s32 start, __s32 field)
{
	__s32 l4, own, len = SCTP_LEN;

	if (!key || l3 > MAX_L3_OFFSET)
		return PARTIAL_MISPLACED;
	if (!is_ip(key))
		return l3_shape(key) == WEFT_L3_NONE && start >= (__s32)l3;
	hide_bounds(l3, MAX_L3_OFFSET);
	l4 = ip_frag(key) == FRAG_WHOLE ? find_l4(skb, key, l3) : 0;
	if (!l4)
		return PARTIAL_MISPLACED;
	switch (ip_proto(key)) {
	case PROTO_TCP:
		own = TCP_SUM;
		len = TCP_MAX_LEN;
		break;
	case PROTO_UDP:
		own = UDP_SUM;
		break;
	case PROTO_SCTP:
		own = SCTP_SUM;
		break;
	case PROTO_ICMP:
	case PROTO_ICMP6:
		/* A key may contain bytes from the whole of a neighbour discovery message. */
		return start == l4 && field == l4 + ICMP_SUM;
	default:
		return start >= l4 + len ? PARTIAL_INSIDE : PARTIAL_MISPLACED;
	}
	if (start >= l4 + len)
		return PARTIAL_INSIDE;
	return start == l4 && field == l4 + own ? PARTIAL_OWN : PARTIAL_MISPLACED;
}

/*
 * Whether a partial checksum is that of TCP or UDP in an untagged IP packet without options or
 * extension headers. Then may_stay_partial() returns PARTIAL_OWN.
 */
static __always_inline bool is_own_of_plain(struct __sk_buff *skb, const struct weft_key *key,
					    const struct partial_csum *csum)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const __u8 *ip = data + ETH_LEN;
	__u8 proto = ip_proto(key);
	__s32 l4 = ETH_LEN;

	if (key->vlan || ip_frag(key) != FRAG_WHOLE || data + ETH_LEN + IP4_LEN > end)
		return false;
	if (l3_shape(key) == WEFT_L3_IP4 && ip[0] == 0x45)
		l4 += IP4_LEN;
	else if (l3_shape(key) == WEFT_L3_IP6 && ip[6] == proto)
		l4 += IP6_LEN;
	else
		return false;
	if (proto != PROTO_TCP && proto != PROTO_UDP)
		return false;
	return csum->start == l4 && csum->field == l4 + (proto == PROTO_TCP ? TCP_SUM : UDP_SUM);
}

/*
 * Whether there may be a partial checksum behind the transport header at `l4` (PARTIAL_INSIDE). One
 * that belongs to the outer headers does not matter: it is removed with them. A global function, so
 * that its variables do not occupy the caller's stack.
 */
__weak int has_partial_inside(struct __sk_buff *skb, __u32 l4)
{
	struct partial_csum csum = {};

	switch (read_partial_csum(skb, &csum)) {
	case CSUM_DONE:
		return false;
	case CSUM_PENDING:
		return csum.start > (__s32)l4;
	default:
		return true;
	}
}

/* Equal to 0 in ones' complement. 0 itself means that no outer checksum is wanted. */
#define EMPTY_SUM 0xffff

/*
 * Computes the sum from offset `l3` on as it will be when a pending checksum is filled in. The
 * result is not folded, and never 0. `has_ip`: parse() found IP at `l3`. Returns false on failure.
 */
__weak int sum_of_packet(struct __sk_buff *skb, __u32 l3, bool has_ip, __u64 *sum)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct partial_csum csum = {};
	__u64 total = EMPTY_SUM;
	__be16 field;

	if (!sum || !l3 || l3 > MAX_L3_OFFSET)
		return false;
	/* A tag between MAC header and `l3` that encap() does not move would be left out. */
	if (l3 > ETH_LEN && !skb->vlan_present)
		return false;
	hide_bounds(l3, MAX_L3_OFFSET);
	if (has_ip && (sum_by_pseudo_header(data + l3, end, skb->len - l3, false, &total) ||
		      sum_by_pseudo_header(data + l3, end, skb->len - l3, true, &total))) {
		*sum = total;
		return true;
	}
	switch (read_partial_csum(skb, &csum)) {
	case CSUM_DONE:
		if (!sum_bytes(skb, l3, skb->len, &total))
			return false;
		*sum = total;
		return true;
	case CSUM_PENDING:
		break;
	default:
		return false;
	}
	/* Ones' complement sums need even offsets. */
	if (csum.start < (__s32)l3 || (csum.start - l3) % 2 || (csum.field - csum.start) % 2 ||
	    csum.field - csum.start == SCTP_SUM)
		return false;
	if (!sum_bytes(skb, l3, csum.start, &total) ||
	    bpf_skb_load_bytes(skb, csum.field, &field, sizeof(field)))
		return false;
	*sum = total + (__u16)~field;
	return true;
}

/*
 * A fast path of sum_of_packet() for the most frequent case, untagged IPv4 with a pending checksum.
 * Returns false for all others.
 */
static __always_inline bool sum_of_plain(struct __sk_buff *skb, const struct weft_key *key,
					 __u64 *sum)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (key->vlan || l3_shape(key) != WEFT_L3_IP4)
		return false;
	*sum = EMPTY_SUM;
	return sum_by_pseudo_header(data + ETH_LEN, end, skb->len - ETH_LEN, false, sum);
}
