/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Action lists. A program checks everything that could prevent an action before it runs the first
 * one. So it punts a packet unchanged or not at all, and no list is executed half in the kernel and
 * half in userspace.
 */
#pragma once

#include "encap.h"
#include "lookup.h"

#define PACKET_HOST 0

/*
 * Packets of a flow must stay in order. Whether a program can execute a list also depends on the
 * packet: on its length, its headers, and whether it is a super-packet. So after punting a packet
 * for such a reason, a program pins the megaflow to the slow path: it punts the next packets too.
 * The pin ends after a second, when userspace's queues have drained, or after PIN_PACKETS packets.
 * Without the second limit, rare long packets of one guest would keep all senders of a megaflow on
 * the slow path.
 *
 * The upper 24 bits of a pin are its time in units of 2^20 ns, about a millisecond. The lower 8
 * bits are the number of packets that are still to be punted.
 */
#define PIN_CLOCK_SHIFT 20
#define PIN_TICKS (1000000000 >> PIN_CLOCK_SHIFT)
#define PIN_TIME_SHIFT 8
#define PIN_TIME_MASK 0xffffff
#define PIN_PACKETS 64

static __always_inline __u32 pin_time(void)
{
	return bpf_ktime_get_ns() >> PIN_CLOCK_SHIFT & PIN_TIME_MASK;
}

/* Pins a megaflow when one of its packets is punted. */
__weak int pin_to_slow_path(__u32 number)
{
	struct weft_flow *flow = flow_at(number);

	if (flow)
		*(volatile __u32 *)&flow->pin = pin_time() << PIN_TIME_SHIFT | PIN_PACKETS;
	return 0;
}

/* Whether the next packet has to be punted too. Clears the pin when it has ended. */
__weak int has_recent_pin(struct weft_flow *flow)
{
	__u32 now = pin_time(), pin, age, left;

	if (!flow || !has_daemon())
		return false;
	pin = *(volatile __u32 *)&flow->pin;
	age = (now - (pin >> PIN_TIME_SHIFT)) & PIN_TIME_MASK;
	/* Another CPU may have stored a later time than this CPU read. */
	if (age > PIN_TIME_MASK / 2)
		age = 0;
	left = age <= PIN_TICKS && pin & 0xff ? pin - 1 : 0;
	/* Keep a pin that another CPU has set in the meantime. */
	__sync_val_compare_and_swap(&flow->pin, pin, left);
	return left != 0;
}

/* Whether packets of this megaflow have to be punted to stay in order. */
static __always_inline bool is_pinned(struct weft_flow *flow)
{
	return flow->pin && has_recent_pin(flow);
}

static __always_inline struct weft_port *port_at(__u32 number)
{
	return bpf_map_lookup_elem(&weft_ports, &number);
}

/* Whether frames of a port are being captured, which only userspace can do. */
static __always_inline bool is_watched(const struct weft_port *port)
{
	return port->flags & WEFT_PORT_WATCHED && has_daemon();
}

/* The number of VLAN tags. Adding the bits that mark a tag as present avoids branches. */
static __always_inline __u32 tag_count(const struct weft_key *key)
{
	__u64 present = WEFT_TAG_PRESENT;

	return !!(key->vlan & present << WEFT_VLAN_TCI_SHIFT) + !!(key->vlan & present);
}

/* Whether there are tags that helpers cannot handle: those of TPID 0x9100. */
static __always_inline bool has_odd_tags(const struct weft_key *key)
{
	return key->vlan >> WEFT_VLAN_TPID_SHIFT == ETHERTYPE_VLAN_9100 ||
	       (key->vlan >> WEFT_VLAN_INNER_TPID_SHIFT & 0xffff) == ETHERTYPE_VLAN_9100;
}

/*
 * Length of the longest segment of a super-packet, as packet::wire_len in userspace; 0 if it cannot
 * be determined. `l3` is the offset of the IP header.
 */
__weak int segment_len(struct __sk_buff *skb, const struct weft_key *key, __u32 l3)
{
	__u8 byte;
	__u32 l4;

	if (!key || l3 > MAX_L4_OFFSET)
		return 0;
	switch (l3_shape(key)) {
	case WEFT_L3_IP4:
		if (bpf_skb_load_bytes(skb, l3, &byte, 1))
			return 0;
		l4 = l3 + (byte & 0x0f) * 4;
		break;
	case WEFT_L3_IP6:
		if (bpf_skb_load_bytes(skb, l3 + 6, &byte, 1) || byte != ip_proto(key))
			return 0;
		l4 = l3 + IP6_LEN;
		break;
	default:
		return 0;
	}
	switch (ip_proto(key)) {
	case PROTO_UDP:
		return l4 + UDP_LEN + skb->gso_size;
	case PROTO_TCP:
		if (bpf_skb_load_bytes(skb, l4 + 12, &byte, 1))
			return 0;
		return l4 + (byte >> 4) * 4 + skb->gso_size;
	default:
		return 0;
	}
}

/* Whether there are IPv6 extension headers, or the header cannot be read. */
static __always_inline bool has_extensions(struct __sk_buff *skb, const struct weft_key *key,
					   __u32 l3)
{
	__u8 next;

	if (l3_shape(key) != WEFT_L3_IP6)
		return false;
	return bpf_skb_load_bytes(skb, l3 + 6, &next, 1) || next != ip_proto(key);
}

/*
 * Whether a frame can be sent by a port: the port exists, is not being captured, and its MTU
 * suffices. `untagged` is the length without tags; 0 for a super-packet, because its sender chose
 * the segment size to fit the MTU.
 */
static __always_inline bool can_output(const struct weft_port *out, __u32 untagged)
{
	return out && out->ifindex && untagged <= out->max_len && !is_watched(out);
}

/* Whether a tagged frame (or segment) of this length can be sent by the uplink. */
static __always_inline bool can_uplink(__u32 wire_len)
{
	return weft_config.uplink_ifindex &&
	       (!weft_config.uplink_max_len || wire_len <= weft_config.uplink_max_len);
}

/*
 * Whether an action other than WEFT_ACTION_SET, which is not the last of its list, can be executed.
 * A global function, because the verifier checks it once instead of once per call.
 */
__weak int can_apply(const struct weft_key *key, const struct weft_action *action, __u32 untagged,
		  __u32 wire_len)
{
	if (!key || !action)
		return false;
	switch (action->kind) {
	case WEFT_ACTION_OUTPUT:
		return can_output(port_at(action->number), untagged);
	case WEFT_ACTION_UPLINK:
		/* A list that changes tags makes no copies, so the length is still right. */
		return can_uplink(wire_len);
	case WEFT_ACTION_PUSH_VLAN:
		return true;
	case WEFT_ACTION_POP_VLAN:
		/*
		 * Only a tag that the frame arrived with, because `grows` includes pushed ones; and
		 * not behind outer headers, where the helper does not find tags.
		 */
		return key->vlan && !has_odd_tags(key) && !key->tun_addr[0] && !key->tun_addr[1];
	default:
		return false;
	}
}

enum applicable {
	CANNOT_APPLY = 0,
	CAN_APPLY = 1,
	/* But not if the frame's partial checksum is PARTIAL_INSIDE. */
	CAN_APPLY_WITH_SUM = 2,
};

/*
 * Whether all actions but the last can be executed (enum applicable). `l3` is the offset of layer 3
 * in the skb. `wire_len` is the length of the frame, or of its longest segment where that matters.
 * Rarely called: most lists have one action.
 */
__weak int can_apply_all_but_last(struct __sk_buff *skb, const struct weft_key *key,
		      const struct weft_action_list *list, __u32 l3, __u32 wire_len)
{
	const struct weft_action *action;
	__u32 i, count, untagged, fields = 0;

	if (!key || !list)
		return false;
	count = list->count;
	untagged = skb->gso_size ? 0 : wire_len - tag_count(key) * TAG_LEN;
#pragma clang loop unroll(disable)
	for (i = 0; i < WEFT_MAX_ACTIONS - 1; i++) {
		if (i + 1 >= count)
			break;
		action = &list->actions[i];
		if (action->kind == WEFT_ACTION_SET)
			fields |= 1U << (action->field & 31);
		else if (!can_apply(key, action, untagged, wire_len))
			return false;
	}
	if (!can_set(key, fields, has_extensions(skb, key, l3)))
		return CANNOT_APPLY;
	/* A super-packet's own checksum is always partial. */
	return fields & SUMMED_FIELDS && !skb->gso_size ? CAN_APPLY_WITH_SUM : CAN_APPLY;
}

/* The last of `count` actions of a list that is not empty; NULL if `count` is out of range. */
static __always_inline const struct weft_action *last_of(const struct weft_action_list *list,
							 __u64 count)
{
	if (count > WEFT_MAX_ACTIONS)
		return 0;
	/* Keeps the compiler from computing the offset before the check. */
	barrier_var(count);
	return &list->actions[count - 1];
}

static __always_inline void count_tx(struct weft_port_stats *count, __u32 bytes)
{
	if (count) {
		__sync_fetch_and_add(&count->tx_packets, 1);
		__sync_fetch_and_add(&count->tx_bytes, bytes);
	}
}

static __always_inline void count_rx(struct weft_port_stats *count, __u32 bytes)
{
	if (count) {
		__sync_fetch_and_add(&count->rx_packets, 1);
		__sync_fetch_and_add(&count->rx_bytes, bytes);
	}
}

static __always_inline struct weft_port_stats *port_stats(__u32 port)
{
	return bpf_map_lookup_elem(&weft_port_stats, &port);
}

static __always_inline struct weft_port_stats *uplink_stats(void)
{
	__u32 none = 0;

	return bpf_map_lookup_elem(&weft_uplink_stats, &none);
}

/* Bytes of the frame, its tag in metadata included. */
static __always_inline __u32 frame_bytes(struct __sk_buff *skb)
{
	return skb->len + (skb->vlan_present ? TAG_LEN : 0);
}

/*
 * Executes an action other than WEFT_ACTION_SET, which is not the last of its list. Returns 0, or
 * an error after which the rest of the list is not executed.
 */
__weak int apply_action(struct __sk_buff *skb, struct weft_key *key,
			const struct weft_action *action)
{
	struct weft_port *out;
	__u32 bytes;

	if (!key || !action)
		return -1;
	switch (action->kind) {
	case WEFT_ACTION_OUTPUT:
		out = port_at(action->number);
		bytes = frame_bytes(skb);
		if (!out || bpf_clone_redirect(skb, out->ifindex, 0))
			count_drop(ingress_port(key), DROP_QUEUE_FULL);
		else
			count_tx(port_stats(action->number), bytes);
		return 0;
	case WEFT_ACTION_UPLINK:
		bytes = frame_bytes(skb);
		if (bpf_clone_redirect(skb, weft_config.uplink_ifindex, 0))
			count_drop(ingress_port(key), DROP_QUEUE_FULL);
		else
			count_tx(uplink_stats(), bytes);
		return 0;
	case WEFT_ACTION_PUSH_VLAN:
		return bpf_skb_vlan_push(skb, bpf_htons(action->value >> WEFT_PUSH_VLAN_TPID_SHIFT),
					 action->value);
	case WEFT_ACTION_POP_VLAN:
		return bpf_skb_vlan_pop(skb);
	default:
		return -1;
	}
}

/* Executes all actions but the last. Consecutive changes of headers are written together. */
__weak int apply_all_but_last(struct __sk_buff *skb, struct weft_key *key,
			      const struct weft_action_list *list)
{
	const struct weft_action *action;
	__u32 i, count, stale = 0, l3;

	if (!key || !list)
		return -1;
	count = list->count;
	/* ETH_LEN if the frame has no tags before and after the actions; 0: unknown. */
	l3 = key->vlan || list->grows ? 0 : ETH_LEN;

#pragma clang loop unroll(disable)
	for (i = 0; i < WEFT_MAX_ACTIONS - 1; i++) {
		if (i + 1 >= count)
			break;
		action = &list->actions[i];
		if (action->kind == WEFT_ACTION_SET) {
			stale |= set_key_field(key, action->field, action->value, action->number);
			continue;
		}
		if (stale && write_headers(skb, key, stale, l3))
			return -1;
		stale = 0;
		if (apply_action(skb, key, action))
			return -1;
	}
	return stale ? write_headers(skb, key, stale, l3) : 0;
}

/* Whether the guest at the other end of a veth pair has the frame's destination address. */
static __always_inline bool is_for_guest(const struct weft_key *key, const struct weft_port *out)
{
	return out->flags & WEFT_PORT_PEER && (key->eth_dst & ~0xffffULL) == out->eth_dst;
}

/*
 * Sends a frame by a port. A frame to the guest's own address is injected at the guest's end of the
 * veth pair (bpf_redirect_peer), which avoids a pass through the backlog queue. That skips
 * eth_type_trans(), so the packet type is set here. `has_protocol`: skb->protocol is the EtherType
 * of the frame.
 */
static __always_inline int deliver(struct __sk_buff *skb, const struct weft_key *key,
				   const struct weft_port *out, bool has_protocol)
{
	if (has_protocol && is_for_guest(key, out) &&
	    (skb->pkt_type == PACKET_HOST || !bpf_skb_change_type(skb, PACKET_HOST)))
		return bpf_redirect_peer(out->ifindex, 0);
	return bpf_redirect(out->ifindex, 0);
}
