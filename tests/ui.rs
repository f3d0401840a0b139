//! What must not compile: each file under `ui/` with the error it must give.

#[test]
fn what_must_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
