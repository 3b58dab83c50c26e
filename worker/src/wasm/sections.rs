//! What is too large to be compiled at all: a compiler cannot be interrupted, and takes more than twice as long for a function
//! of twice the size.

/// Most bytes of a module.
pub const MODULE_BYTES_LIMIT: u64 = 64 << 20;

/// Most bytes of one function. Those of real programs have a tenth of that at most: interpreters' main loops.
const FUNCTION_BYTES_LIMIT: usize = 1 << 20;

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
    let largest = largest_function(module)?;
    (largest > FUNCTION_BYTES_LIMIT)
        .then(|| format!("a function of the module has {largest} bytes; at most {FUNCTION_BYTES_LIMIT} are compiled"))
}

/// In bytes; none if the module has no code, or cannot be read.
fn largest_function(module: &[u8]) -> Option<usize> {
    let mut rest = module.get(HEADER_BYTES..)?;
    while let Some((&id, after)) = rest.split_first() {
        let (length, after) = number(after)?;
        let (section, after) = after.split_at_checked(length)?;
        if id == CODE {
            let (count, mut bodies) = number(section)?;
            let mut largest = 0;
            for _ in 0..count {
                let (length, body) = number(bodies)?;
                largest = largest.max(length);
                bodies = body.split_at_checked(length)?.1;
            }
            return Some(largest);
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

    /// A module with one function of so many bytes.
    fn module(body: usize) -> Vec<u8> {
        fn leb(mut value: usize) -> Vec<u8> {
            let mut bytes = Vec::new();
            while value >= 0x80 {
                bytes.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
                value >>= 7;
            }
            bytes.push(u8::try_from(value).expect("seven bits"));
            bytes
        }
        let mut code = vec![1];
        code.extend(leb(body));
        code.resize(code.len() + body, 0);
        let mut module = b"\0asm\x01\0\0\0\x00\x03\x01xy".to_vec();
        module.push(CODE);
        module.extend(leb(code.len()));
        module.extend(code);
        module
    }

    #[test]
    fn a_function_is_measured_wherever_its_section_is() {
        assert_eq!(largest_function(&module(300)), Some(300));
        assert_eq!(against(&module(FUNCTION_BYTES_LIMIT)), None);
        let said = against(&module(FUNCTION_BYTES_LIMIT + 1)).expect("too large");
        assert!(said.contains("a function of the module has 1048577 bytes"), "{said}");
        assert_eq!(against(b"#!/bin/sh"), Some("the file is not a WebAssembly module".to_owned()));
    }

    #[test]
    fn what_is_cut_anywhere_is_no_panic() {
        let whole = module(300);
        for end in 0..whole.len() {
            assert_eq!(largest_function(&whole[..end]), None, "{end}");
        }
        bolero::check!()
            .for_each(|bytes: &[u8]| assert!(largest_function(bytes).is_none_or(|largest| largest < 1 << 35)));
    }
}
