//! The pages of the book in docs/ whose Rust is compiled, and run where it can be, with the tests of
//! the documentation.

macro_rules! pages {
    ($($name:ident: $file:literal)*) => {$(
        #[doc = include_str!(concat!("../docs/", $file))]
        struct $name;
    )*};
}
pages! {
    Start: "start.md"
    Arrays: "arrays.md"
    Modes: "modes.md"
    Completion: "completion.md"
    WholeArrays: "whole-arrays.md"
    Teams: "teams.md"
    Messages: "messages.md"
    Synchronisation: "synchronisation.md"
    ComingFrom: "coming-from.md"
}
