//! The link and the MTU of a machine that change while it runs.

use crate::machine::Machine;
use crate::network::{Up, lease, reach_host};

/// A machine sees its link go down and up, and its connections continue. One with packed rings does
/// not see it, and continues as well. A machine gets a smaller MTU with its next lease.
pub(crate) fn down_and_up() {
    let ports =
        [("--vhost-user", "one"), ("--vhost-user-client", "two"), ("--vhost-user", "three")];
    let up = Up::start("link", &ports);
    let mut one = Machine::boot(&up.socket("one"), 1, ",mac=02:00:00:00:00:01");
    let mut two = Machine::boot_listening(&up.socket("two"), ",mac=02:00:00:00:00:02");
    lease(&mut one, "one");
    lease(&mut two, "two");
    two.start("nc -ll -p 9 -e cat &");
    two.run("while ! netstat -ltn | grep -q :9; do sleep 0.1; done");
    let parts = "echo before; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo after";
    one.start(&format!("({parts}; tail -f /dev/null) | nc two 9 > /tmp/out &"));
    one.run("until grep -q before /tmp/out; do sleep 0.1; done");
    for (name, machine) in [("one", &mut one), ("two", &mut two)] {
        up.ask(&["port", "set", name, "link", "down"]);
        machine.run("until grep -q 0 /sys/class/net/eth0/carrier; do sleep 0.1; done");
        assert!(up.ask(&["ls"]).contains(&format!(" {name}             link down ")));
        up.ask(&["port", "set", name, "link", "up"]);
        machine.run("until grep -q 1 /sys/class/net/eth0/carrier; do sleep 0.1; done");
        machine.run("ping -c 3 -i 0.1 -W 60 gateway | grep -q ' 3 packets received'");
    }
    with_packed_rings(&up);
    one.run("touch /tmp/go; until grep -q after /tmp/out; do sleep 0.1; done");
    reach_host(&mut one);
    up.ask(&["port", "set", "one", "mtu", "1300"]);
    for line in ["#!/bin/sh", "[ $1 != bound ] || ip link set $interface mtu $mtu"] {
        one.run(&format!("echo '{line}' >> /tmp/mtu"));
    }
    one.run("chmod +x /tmp/mtu");
    one.run("udhcpc -i eth0 -n -q -t 60 -T 1 -O mtu -s /tmp/mtu");
    one.run("grep -q 1300 /sys/class/net/eth0/mtu");
    one.run("ping -c 3 -i 0.1 -W 60 two | grep -q ' 3 packets received'");
    reach_host(&mut one);
    one.power_off();
    two.power_off();
    up.finish();
}

/// QEMU would forget the position of its rings, so the machine keeps its connection.
fn with_packed_rings(up: &Up) {
    let mut three = Machine::boot(&up.socket("three"), 1, ",mac=02:00:00:00:00:03,packed=on");
    lease(&mut three, "three");
    three.run("ping -c 3 -i 0.1 -W 60 gateway | grep -q ' 3 packets received'");
    up.ask(&["port", "set", "three", "link", "down"]);
    three.run("! ping -c 2 -W 1 10.0.2.2 > /dev/null && grep -q 1 /sys/class/net/eth0/carrier");
    up.ask(&["port", "set", "three", "link", "up"]);
    three.run("ping -c 3 -i 0.1 -W 60 gateway | grep -q ' 3 packets received'");
    three.power_off();
}
