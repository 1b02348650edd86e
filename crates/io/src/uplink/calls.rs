//! System calls for uplinks without a safe wrapper elsewhere: one safe function per call, and the
//! XDP program.
//!
//! This module has no state, and any thread may call its functions. The layouts are those of
//! linux/if_packet.h and linux/bpf.h.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::{CStr, c_int, c_long};

/// `bind`: binds a packet socket to an interface, for frames of every protocol.
pub(super) fn bind_packet(socket: BorrowedFd<'_>, index: u32) -> Result<(), Errno> {
    // SAFETY: `sockaddr_ll` is plain data, for which all zeros is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index.cast_signed();
    // SAFETY: the kernel reads one `sockaddr_ll`, which lives on our stack.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bind,
            socket.as_raw_fd(),
            &raw const address,
            size_of::<libc::sockaddr_ll>(),
        )
    };
    check(result).map(drop)
}

/// `getsockname`: index of the interface that a packet socket is bound to. `None` if the interface
/// has gone.
pub(super) fn bound_interface(socket: BorrowedFd<'_>) -> Result<Option<u32>, Errno> {
    // SAFETY: `sockaddr_ll` is plain data, for which all zeros is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `address`, and the new length. Both live
    // on our stack.
    let result = unsafe {
        libc::syscall(libc::SYS_getsockname, socket.as_raw_fd(), &raw mut address, &raw mut length)
    };
    check(result)?;
    // The kernel sets the index to -1 when the interface is unregistered.
    Ok(u32::try_from(address.sll_ifindex).ok().filter(|index| *index > 0))
}

/// `BPF_MAP_CREATE`: an array of AF_XDP sockets by queue, with `queues` places.
pub(super) fn create_socket_map(queues: u32) -> Result<OwnedFd, Errno> {
    let attributes = MapCreate {
        map_type: BPF_MAP_TYPE_XSKMAP,
        key_size: size_of::<u32>() as u32,
        value_size: size_of::<u32>() as u32,
        max_entries: queues,
        map_flags: 0,
    };
    // SAFETY: the attributes have no pointers.
    unsafe { bpf_file(BPF_MAP_CREATE, &attributes) }
}

/// `BPF_MAP_UPDATE_ELEM`: puts an AF_XDP socket into the place of its queue.
pub(super) fn put_socket(
    map: BorrowedFd<'_>,
    queue: u32,
    socket: BorrowedFd<'_>,
) -> Result<(), Errno> {
    let value = socket.as_raw_fd();
    let attributes = MapUpdate {
        map: map.as_raw_fd(),
        padding: 0,
        key: (&raw const queue).expose_provenance() as u64,
        value: (&raw const value).expose_provenance() as u64,
        flags: 0,
    };
    // SAFETY: the kernel reads a key and a value of four bytes each, as `create_socket_map` has
    // set their sizes. Both live on our stack.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &attributes) }.map(drop)
}

/// `BPF_PROG_LOAD`: a program that passes each frame to the socket in the place of its queue in
/// `map`, and to the kernel's own stack if the place is empty.
pub(super) fn load_program(map: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let program = program(map.as_raw_fd());
    let attributes = ProgramLoad {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr().expose_provenance() as u64,
        license: LICENSE.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: *b"towpath\0\0\0\0\0\0\0\0\0",
        prog_ifindex: 0,
        expected_attach_type: 0,
    };
    // SAFETY: the kernel reads `insn_cnt` instructions, which live on our stack, and the licence, a
    // string that ends with a zero byte. Both outlive the call.
    unsafe { bpf_file(BPF_PROG_LOAD, &attributes) }
}

/// `BPF_LINK_CREATE`: runs the program for each frame that arrives at the interface, until the last
/// descriptor of the returned link is closed, at the latest when the process ends.
pub(super) fn attach_program(
    program: BorrowedFd<'_>,
    index: u32,
    is_native: bool,
) -> Result<OwnedFd, Errno> {
    let attributes = LinkCreate {
        program: program.as_raw_fd(),
        target_ifindex: index,
        attach_type: BPF_XDP,
        flags: if is_native { XDP_FLAGS_DRV_MODE } else { XDP_FLAGS_SKB_MODE },
    };
    // SAFETY: the attributes have no pointers.
    unsafe { bpf_file(BPF_LINK_CREATE, &attributes) }
}

/// The XDP program: `return bpf_redirect_map(map, context->rx_queue_index, XDP_PASS)`.
fn program(map: c_int) -> [[u8; 8]; 6] {
    [
        // r2 = context->rx_queue_index
        instruction(LOAD_WORD, (2, 1), RX_QUEUE_INDEX_AT, 0),
        // r1 = map, in two instructions
        instruction(LOAD_WIDE, (1, BPF_PSEUDO_MAP_FD), 0, map),
        [0; 8],
        // r3 = what to do with frames of other queues
        instruction(MOVE, (3, 0), 0, XDP_PASS),
        instruction(CALL, (0, 0), 0, BPF_FUNC_REDIRECT_MAP),
        instruction(EXIT, (0, 0), 0, 0),
    ]
}

/// `struct bpf_insn`: operation, target and source register, offset and value.
fn instruction(operation: u8, (target, source): (u8, u8), offset: i16, value: i32) -> [u8; 8] {
    // The registers are bit fields, in the order of the machine's bits.
    let registers = match cfg!(target_endian = "little") {
        true => source << 4 | target,
        false => target << 4 | source,
    };
    let mut bytes = [operation, registers, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&offset.to_ne_bytes());
    bytes[4..].copy_from_slice(&value.to_ne_bytes());
    bytes
}

/// `bpf`, for commands that return a descriptor.
///
/// # Safety
/// As for [`bpf`]; `command` returns a descriptor.
unsafe fn bpf_file<A>(command: c_int, attributes: &A) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller guarantees what `attributes` must be.
    let file = unsafe { bpf(command, attributes) }?;
    // SAFETY: the command has returned a new descriptor, which has no other owner. The kernel sets
    // close-on-exec on it.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// `bpf`.
///
/// # Safety
/// `A` has the layout of the attributes of `command`, and the addresses in it are valid for what
/// the command does with them.
unsafe fn bpf<A>(command: c_int, attributes: &A) -> Result<c_int, Errno> {
    let attributes = std::ptr::from_ref(attributes);
    // SAFETY: the kernel reads `attributes`, which are borrowed for the call; the caller guarantees
    // the rest.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<A>()) };
    check(result)
}

fn check(result: c_long) -> Result<c_int, Errno> {
    c_int::try_from(result)
        .ok()
        .filter(|value| *value >= 0)
        .ok_or_else(|| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Attributes of `BPF_MAP_CREATE`.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// Attributes of `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
struct MapUpdate {
    map: c_int,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Attributes of `BPF_PROG_LOAD`.
#[repr(C)]
struct ProgramLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// Attributes of `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkCreate {
    program: c_int,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

const _: () = assert!(size_of::<MapCreate>() == 20 && size_of::<MapUpdate>() == 32);
const _: () = assert!(size_of::<ProgramLoad>() == 72 && size_of::<LinkCreate>() == 16);

const BPF_MAP_CREATE: c_int = 0;
const BPF_MAP_UPDATE_ELEM: c_int = 2;
const BPF_PROG_LOAD: c_int = 5;
const BPF_LINK_CREATE: c_int = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
/// Licence of the program. It calls no function that is reserved for the GPL.
const LICENSE: &CStr = c"MIT";
/// `BPF_LDX | BPF_MEM | BPF_W`.
const LOAD_WORD: u8 = 0x61;
/// `BPF_LD | BPF_IMM | BPF_DW`.
const LOAD_WIDE: u8 = 0x18;
/// `BPF_ALU64 | BPF_MOV | BPF_K`.
const MOVE: u8 = 0xb7;
/// `BPF_JMP | BPF_CALL`.
const CALL: u8 = 0x85;
/// `BPF_JMP | BPF_EXIT`.
const EXIT: u8 = 0x95;
/// The wide load is the descriptor of a map.
const BPF_PSEUDO_MAP_FD: u8 = 1;
/// Offset in `struct xdp_md`.
const RX_QUEUE_INDEX_AT: i16 = 16;
/// The frame continues into the kernel's own stack.
const XDP_PASS: i32 = 2;
const BPF_FUNC_REDIRECT_MAP: i32 = 51;
