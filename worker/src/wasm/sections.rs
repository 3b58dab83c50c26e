//! What is too large to be compiled at all: a compiler cannot be interrupted, and takes more than twice as long for a function of twice
//! the size.

/// Most bytes of a module.
pub const MODULE_BYTES_LIMIT: u64 = 64 << 20;

/// Most bytes of all functions. Interpreters of whole languages have ten.
const CODE_BYTES_LIMIT: usize = 32 << 20;

/// Most bytes of one function. Those of real programs have a fifth of that at most: interpreters' main loops.
const FUNCTION_BYTES_LIMIT: usize = 512 << 10;

const MAGIC: &[u8] = b"\0asm";
/// Magic and version.
const HEADER_BYTES: usize = 8;
const CODE: u8 = 10;

/// Why a module is not compiled; none if there is nothing against it here. What is malformed is the compiler's to say.
pub fn against(module: &[u8]) -> Option<String> {
    if module.len() as u64 > MODULE_BYTES_LIMIT {
        return Some(format!(
            "the module has {} MiB; at most {} MiB can be",
            module.len() >> 20,
            MODULE_BYTES_LIMIT >> 20
        ));
    }
    if !module.starts_with(MAGIC) {
        return Some("the file is not a WebAssembly module".to_owned());
    }
    let code = code(module)?;
    if code.bytes > CODE_BYTES_LIMIT {
        return Some(format!("the module has {} bytes of code; at most {CODE_BYTES_LIMIT} are compiled", code.bytes));
    }
    let largest = code.largest;
    (largest > FUNCTION_BYTES_LIMIT)
        .then(|| format!("a function of the module has {largest} bytes; at most {FUNCTION_BYTES_LIMIT} are compiled"))
}

#[derive(Debug, PartialEq, Eq)]
struct Code {
    bytes: usize,
    largest: usize,
}

/// None if the module has no code, or cannot be read.
fn code(module: &[u8]) -> Option<Code> {
    let mut rest = module.get(HEADER_BYTES..)?;
    while let Some((&id, after)) = rest.split_first() {
        let (length, after) = number(after)?;
        let (section, after) = after.split_at_checked(length)?;
        if id == CODE {
            let (count, mut bodies) = number(section)?;
            let mut code = Code { bytes: section.len(), largest: 0 };
            for _ in 0..count {
                let (length, body) = number(bodies)?;
                code.largest = code.largest.max(length);
                bodies = body.split_at_checked(length)?.1;
            }
            return Some(code);
        }
        rest = after;
    }
    None
}

/// An unsigned 32-bit number in LEB128, and what is behind it.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0_usize;
    for (index, byte) in bytes.iter().take(5).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module with so many functions of so many bytes.
    fn module(count: usize, body: usize) -> Vec<u8> {
        fn leb(mut value: usize) -> Vec<u8> {
            let mut bytes = Vec::new();
            while value >= 0x80 {
                bytes.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
                value >>= 7;
            }
            bytes.push(u8::try_from(value).expect("seven bits"));
            bytes
        }
        let mut code = leb(count);
        for _ in 0..count {
            code.extend(leb(body));
            code.resize(code.len() + body, 0);
        }
        let mut module = b"\0asm\x01\0\0\0\x00\x03\x01xy".to_vec();
        module.push(CODE);
        module.extend(leb(code.len()));
        module.extend(code);
        module
    }

    #[test]
    fn functions_are_measured_wherever_their_section_is() {
        assert_eq!(code(&module(3, 300)), Some(Code { bytes: 907, largest: 300 }));
        assert_eq!(against(&module(1, FUNCTION_BYTES_LIMIT)), None);
        assert_eq!(against(&module(15_000, 2000)), None);
        for (count, body, expected) in [
            (1, FUNCTION_BYTES_LIMIT + 1, "a function of the module has 524289 bytes; at most 524288 are compiled"),
            (17_000, 2000, "the module has 34034003 bytes of code; at most 33554432 are compiled"),
        ] {
            let said = against(&module(count, body)).expect("too large");
            assert!(said.contains(expected), "{said}");
        }
        assert_eq!(against(b"#!/bin/sh"), Some("the file is not a WebAssembly module".to_owned()));
    }

    #[test]
    fn what_is_cut_anywhere_is_no_panic() {
        let whole = module(1, 300);
        for end in 0..whole.len() {
            assert_eq!(code(&whole[..end]), None, "{end}");
        }
        bolero::check!().for_each(|bytes: &[u8]| assert!(code(bytes).is_none_or(|code| code.largest < 1 << 35)));
    }
}
