// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Frames from guests: the program at tc ingress of a port's device on the host. */
#include "actions.h"

/*
 * The key of a frame, followed by numbers at offsets that the verifier does not track (see
 * verifier.h). The compiler keeps this layout, because functions get the key's address.
 */
struct guest_key {
	struct weft_key key;
	/* Unused, because the verifier tracks numbers at multiples of 8. */
	__u8 unused;
	volatile __u8 partial;		/* enum partial_place */
	volatile __u32 gso_size;	/* 0: no super-packet */
};

/* A frame that a guest sent, and its megaflow. */
struct guest_frame {
	__u32 port;
	__u32 number;		/* of the megaflow */
	const struct weft_action_list *list;
	const struct weft_action *last;
	__u32 count;		/* of the list's actions */
	__u32 bytes;		/* of the frame, including tags */
	__u32 tags;		/* bytes of the frame's tags */
	/* as `bytes`, or that of a super-packet's longest segment if the actions depend on it */
	__u32 wire_len;
	__u32 gso_size;		/* 0: no super-packet */
	struct guest_key *guest;
};

/* Offset of layer 3 in the skb, whose outermost tag may be in the metadata. */
static __always_inline __u32 frame_l3(struct __sk_buff *skb, const struct weft_key *key)
{
	if (!key->vlan)
		return ETH_LEN;
	return ETH_LEN + (tag_count(key) - (skb->vlan_present ? 1 : 0)) * TAG_LEN;
}

/* The place of a frame's partial checksum. The most frequent frames are checked inline. */
static __always_inline enum partial_place find_partial(struct __sk_buff *skb,
						       const struct weft_key *key)
{
	struct partial_csum csum;

	switch (read_partial_csum(skb, &csum)) {
	case CSUM_DONE:
		return PARTIAL_OWN;
	case CSUM_PENDING:
		if (is_own_of_plain(skb, key, &csum))
			return PARTIAL_OWN;
		return may_stay_partial(skb, key, frame_l3(skb, key), csum.start, csum.field);
	default:
		return PARTIAL_MISPLACED;
	}
}

/* Punts a packet, and pins its megaflow, so that later packets are punted too and stay in order. */
static __always_inline int punt_and_pin(struct __sk_buff *skb, const struct guest_frame *frame)
{
	pin_to_slow_path(frame->number);
	return punt(skb, frame->port);
}

/* Counts a packet that this program sends or drops. */
static __always_inline void count_frame(const struct guest_frame *frame)
{
	count_rx(port_stats(frame->port), frame->bytes);
	count_flow(frame->number, frame->bytes);
}

/* Drops a packet that has already been changed when an action fails. */
static __always_inline int drop_half_changed(const struct guest_frame *frame)
{
	count_frame(frame);
	return count_drop(frame->port, DROP_HEADROOM);
}

#define OF_CLASS(flags) ((flags) << WEFT_ENDPOINT_CLASS_SHIFT)

/* The end point of a list that ends in encapsulation; NULL if this program cannot send there. */
static __always_inline struct weft_endpoint *
can_encap(struct __sk_buff *skb, const struct weft_key *key, const struct guest_frame *frame,
	  __u32 *flags)
{
	const __u32 ready = WEFT_ENDPOINT_PRESENT | WEFT_ENDPOINT_RESOLVED;
	const struct weft_action_list *list = frame->list;
	struct weft_endpoint *endpoint;
	__u32 number = list->endpoint, limit;

	endpoint = bpf_map_lookup_elem(&weft_endpoints, &number);
	if (!endpoint)
		return 0;
	/* Read once: the daemon may change them at any time. */
	*flags = *(volatile __u32 *)&endpoint->flags;
	if ((*flags & ready) != ready)
		return 0;
	limit = endpoint->max_len;
	if (*flags & WEFT_ENDPOINT_OPTION && frame->last->has_ports)
		limit -= OPTION_LEN;
	if ((__s32)(frame->wire_len + list->grows) > (__s32)limit)
		return 0;
	/* encap() handles two tags. */
	if ((key->vlan || list->grows) &&
	    (has_odd_tags(key) || tag_count(key) * TAG_LEN + list->grows > 2 * TAG_LEN))
		return 0;
	if (frame->gso_size) {
		const __u32 refused = OF_CLASS(WEFT_CLASS_CHECKSUM | WEFT_CLASS_IP6);
		__u32 len = *flags >> WEFT_ENDPOINT_LEN_SHIFT & 0xff;

		/* The outer IP length has 16 bits. */
		if ((*flags & refused) == refused ||
		    skb->len + list->grows + TAG_LEN + len + OPTION_LEN > 0xffff)
			return 0;
		/*
		 * bpf_skb_adjust_room() rejects encapsulated packets. Once changed they cannot be
		 * punted.
		 */
		if ((frame->count > 1 || key->vlan) && is_encapsulated(skb))
			return 0;
	} else if (skb->len > WEFT_MAX_PLAIN_LEN) {
		return 0;
	}
	return endpoint;
}

static __always_inline int output_to_port(struct __sk_buff *skb, struct weft_key *key,
				   const struct guest_frame *frame)
{
	struct weft_port *out = port_at(frame->last->number);
	__u32 bytes = frame->bytes;

	if (!can_output(out, frame->gso_size ? 0 : bytes - frame->tags))
		return punt_and_pin(skb, frame);
	if (frame->count > 1) {
		if (apply_all_but_last(skb, key, frame->list))
			return drop_half_changed(frame);
		bytes = frame_bytes(skb);
	}
	count_frame(frame);
	count_tx(port_stats(frame->last->number), bytes);
	return deliver(skb, key, out, true);
}

static __always_inline int encap_to_endpoint(struct __sk_buff *skb, struct weft_key *key,
				       const struct guest_frame *frame)
{
	struct weft_endpoint *endpoint;
	__u32 uplink, bytes, flags;
	bool has_sum = false;
	__u64 sum = 0;
	int done;

	endpoint = can_encap(skb, key, frame, &flags);
	uplink = weft_config.uplink_ifindex;
	if (!endpoint || !uplink)
		return punt_and_pin(skb, frame);
	if (flags & OF_CLASS(WEFT_CLASS_CLAMP_MSS | WEFT_CLASS_CHECKSUM)) {
		/*
		 * The user datapath clamps the MSS. No pin: a sender waits for the reply to its
		 * SYN.
		 */
		if (flags & OF_CLASS(WEFT_CLASS_CLAMP_MSS) && ip_proto(key) == PROTO_TCP &&
		    key->transport & 0x02 << WEFT_TCP_FLAGS_SHIFT)
			return punt(skb, frame->port);
		has_sum = flags & OF_CLASS(WEFT_CLASS_CHECKSUM) && !frame->gso_size;
		if (has_sum && !sum_of_plain(skb, key, &sum) &&
		    !sum_of_packet(skb, frame_l3(skb, key), is_ip(key), &sum))
			return punt_and_pin(skb, frame);
	}
	bytes = frame->bytes;
	if (frame->count > 1) {
		if (apply_all_but_last(skb, key, frame->list))
			return drop_half_changed(frame);
		/* The actions may have changed the sum. */
		if (has_sum && (frame->list->grows || !sum_of_plain(skb, key, &sum)) &&
		    !sum_of_packet(skb, l3_offset(skb), is_ip(key), &sum))
			return drop_half_changed(frame);
		bytes = frame_bytes(skb);
	}
	done = flags & OF_CLASS(WEFT_CLASS_IP6) ? encap6(skb, key, frame->last, endpoint, sum) :
					       encap4(skb, key, frame->last, endpoint, sum);
	switch (done) {
	case ENCAP_OK:
		break;
	case ENCAP_REFUSED:
		if (frame->count == 1)
			return punt_and_pin(skb, frame);
		/* fall through */
	default:
		return drop_half_changed(frame);
	}
	count_frame(frame);
	__sync_fetch_and_add(&endpoint->tx_packets, 1);
	__sync_fetch_and_add(&endpoint->tx_bytes, bytes);
	return bpf_redirect(uplink, 0);
}

static __always_inline int output_to_uplink(struct __sk_buff *skb, struct weft_key *key,
				     const struct guest_frame *frame)
{
	__u32 uplink = weft_config.uplink_ifindex, bytes = frame->bytes;

	if (!can_uplink(frame->wire_len + frame->list->grows))
		return punt_and_pin(skb, frame);
	if (frame->count > 1) {
		if (apply_all_but_last(skb, key, frame->list))
			return drop_half_changed(frame);
		bytes = frame_bytes(skb);
	}
	count_frame(frame);
	count_tx(uplink_stats(), bytes);
	return bpf_redirect(uplink, 0);
}

/*
 * Drops a super-packet whose short segments would cost the host more than the guest that sent it.
 * If drops are captured, it is punted, so that the user datapath shows it.
 */
__weak int drop_super_packet(struct __sk_buff *skb, __u32 port, __u32 reason)
{
	if (weft_config.watch_drops && has_daemon())
		return punt(skb, port);
	count_rx(port_stats(port), frame_bytes(skb));
	return count_drop(port, reason);
}

/* Whether the segment length of a super-packet matters for this list. */
static __always_inline bool asks_len(const struct guest_frame *frame)
{
	__u8 kind = frame->last->kind;

	return frame->list->max_len || kind == WEFT_ACTION_ENCAP ||
	       (weft_config.uplink_max_len &&
		(kind == WEFT_ACTION_UPLINK || frame->count > 1));
}

static __always_inline int run_actions(struct __sk_buff *skb, struct weft_key *key,
				       struct guest_frame *frame)
{
	int applicable;

	frame->wire_len = frame->bytes;
	frame->gso_size = skb->gso_size;
	frame->guest->gso_size = frame->gso_size;
	if (!frame->count) {
		count_frame(frame);
		return TC_ACT_SHOT;
	}
	frame->last = last_of(frame->list, frame->count);
	if (!frame->last)
		return punt(skb, frame->port);
	if (frame->gso_size) {
		if (has_tiny_segments(skb, frame->gso_size))
			return drop_super_packet(skb, frame->port, DROP_TINY_SEGMENTS);
		if (frame->gso_size < WEFT_SHORT_SEGMENT_LEN &&
		    !has_segment_tokens(skb, frame->port))
			return drop_super_packet(skb, frame->port, DROP_SEGMENT_LIMIT);
		if (asks_len(frame)) {
			frame->wire_len = segment_len(skb, key, frame_l3(skb, key));
			if (!frame->wire_len)
				return punt_and_pin(skb, frame);
			/* Adds the length of a tag in the metadata. */
			frame->wire_len += frame->bytes - skb->len;
		}
	}
	if (frame->list->max_len && frame->wire_len > frame->list->max_len)
		return punt_and_pin(skb, frame);
	if (frame->count > 1) {
		applicable = can_apply_all_but_last(skb, key, frame->list, frame_l3(skb, key),
						    frame->wire_len);
		if (applicable == CANNOT_APPLY ||
		    (applicable == CAN_APPLY_WITH_SUM &&
		     frame->guest->partial == PARTIAL_INSIDE))
			return punt_and_pin(skb, frame);
	}
	/*
	 * The values are the same as above, because a list does not change while programs use it.
	 * But the verifier forgets what it learned from the comparisons above.
	 */
	frame->count = read_again(frame->list->count);
	frame->gso_size = frame->guest->gso_size;
	switch (frame->last->kind) {
	case WEFT_ACTION_OUTPUT:
		return output_to_port(skb, key, frame);
	case WEFT_ACTION_ENCAP:
		return encap_to_endpoint(skb, key, frame);
	case WEFT_ACTION_UPLINK:
		return output_to_uplink(skb, key, frame);
	case WEFT_ACTION_DROP:
		if (weft_config.watch_drops && has_daemon())
			return punt(skb, frame->port);
		if (frame->count > 1)
			apply_all_but_last(skb, key, frame->list);
		count_frame(frame);
		return count_drop(frame->port, frame->last->field);
	default:
		return punt(skb, frame->port);
	}
}

static __always_inline struct weft_device *device_at(__u32 index)
{
	index &= WEFT_DEVICES - 1;
	return bpf_map_lookup_elem(&weft_devices, &index);
}

/* Probes the further slots when the first one has another device. */
static __noinline struct weft_device *find_device(__u32 ifindex)
{
	struct weft_device *device;
	int i;

#pragma clang loop unroll(disable)
	for (i = 1; i < WEFT_DEVICE_PROBES; i++) {
		device = device_at(ifindex + i);
		if (device && device->ifindex == ifindex)
			return device;
	}
	return 0;
}

/* The entry of an interface, which contains its port. */
static __always_inline struct weft_device *device_of(__u32 ifindex)
{
	struct weft_device *device = device_at(ifindex);

	if (device && device->ifindex == ifindex)
		return device;
	return find_device(ifindex);
}

static __noinline bool is_watched_at(__u32 port)
{
	struct weft_port *from = port_at(port);

	return !from || is_watched(from);
}

/*
 * Drops a frame from a device that is not yet or no longer a port. A guest's frame must not reach
 * the host's network stack.
 */
static __noinline int no_port(void)
{
	return count_drop(weft_config.uplink_port, DROP_NO_SUCH_PORT);
}

SEC("tc")
int weft_vif(struct __sk_buff *skb)
{
	struct weft_device *device = device_of(skb->ifindex);
	__u32 at, port, number, partial;
	struct guest_frame frame = {};
	struct weft_action_list *list;
	struct weft_flow *flow;
	struct guest_key guest;

	frame.guest = &guest;
	if (!device)
		return no_port();
	port = device->port;
	if (weft_config.watch_frames && is_watched_at(port))
		return punt(skb, port);
	if (parse(skb, &guest.key, port, 0) != WEFT_PARSED)
		return miss(skb, port);
	flow = lookup(&guest.key, false, &number);
	if (!flow)
		return miss(skb, port);
	at = flow->list;
	if (at == WEFT_ACTIONS_PUNT || is_pinned(flow))
		return punt(skb, port);
	list = bpf_map_lookup_elem(&weft_actions, &at);
	if (!list)
		return punt(skb, port);
	frame.port = port;
	frame.number = number;
	frame.list = list;
	partial = find_partial(skb, &guest.key);
	/* Userspace completes the checksum before it looks at the frame. */
	if (partial == PARTIAL_MISPLACED)
		return miss(skb, port);
	guest.partial = partial;
	/* Read only here: the compiler would load list->count again after each call. */
	frame.count = list->count;
	frame.bytes = skb->len;
	if (guest.key.vlan) {
		frame.bytes = frame_bytes(skb);
		frame.tags = tag_count(&guest.key) * TAG_LEN;
	}
	return run_actions(skb, &guest.key, &frame);
}

char _license[] SEC("license") __weak = "Dual BSD/GPL";
