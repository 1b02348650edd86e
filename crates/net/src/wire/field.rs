//! Fields of headers at offsets, in network byte order.
//!
//! The functions panic if a field does not fit: the caller has checked the length of the header.

use super::ParseError;

/// The first `N` bytes of a header, or [`ParseError::Truncated`]. Offsets into the array are
/// constants, so the compiler omits further bounds checks.
#[inline]
pub fn header<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], ParseError> {
    bytes.first_chunk().ok_or(ParseError::Truncated)
}

/// The `N` bytes that `emit` writes.
#[inline]
#[track_caller]
pub(super) fn header_mut<const N: usize>(bytes: &mut [u8]) -> &mut [u8; N] {
    let room = bytes.len();
    let Some(header) = bytes.first_chunk_mut() else {
        panic!("emit: {room} bytes of room for a header of {N}");
    };
    header
}

/// The `N` bytes at `offset`.
#[inline]
pub fn read<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[offset..offset + N]);
    field
}

/// The 16-bit field at `offset`.
#[inline]
pub fn read_u16(bytes: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes(read(bytes, offset))
}

/// The 32-bit field at `offset`.
#[inline]
pub fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(read(bytes, offset))
}

/// Stores `field` at `offset`.
#[inline]
pub fn write(bytes: &mut [u8], offset: usize, field: &[u8]) {
    bytes[offset..offset + field.len()].copy_from_slice(field);
}

/// Stores a 16-bit field at `offset`.
#[inline]
pub fn write_u16(bytes: &mut [u8], offset: usize, value: u16) {
    write(bytes, offset, &value.to_be_bytes());
}

/// Stores a 32-bit field at `offset`.
#[inline]
pub fn write_u32(bytes: &mut [u8], offset: usize, value: u32) {
    write(bytes, offset, &value.to_be_bytes());
}
