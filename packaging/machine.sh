#!/bin/sh
# Prepares a Debian system for `cargo xtask deb-test`. The argument is its root directory. At its
# boot the machine starts the test, and powers off afterwards.
set -eu
root=$1

# The initramfs contains only the modules that this machine needs, so that it is unpacked quickly.
printf 'MODULES=list\n' >"$root/etc/initramfs-tools/conf.d/machine"
printf 'virtio_pci\nvirtio_blk\next4\n' >"$root/usr/share/initramfs-tools/modules.d/machine"
chroot "$root" update-initramfs -u

echo h1 >"$root/etc/hostname"
printf '/dev/vda / ext4 defaults 0 1\n/dev/vdb /mnt ext4 ro 0 0\n' >"$root/etc/fstab"
cat >"$root/etc/systemd/system/deb-test.service" <<'END'
[Unit]
RequiresMountsFor=/mnt

[Service]
Type=oneshot
ExecStart=/bin/bash /mnt/start.sh
StandardOutput=tty
TTYPath=/dev/ttyS1
ExecStopPost=/bin/systemctl poweroff --force

[Install]
WantedBy=multi-user.target
END
chroot "$root" systemctl enable deb-test.service
# The test starts these services when it needs them.
chroot "$root" systemctl disable openvswitch-switch.service ovn-central.service prometheus.service
