// The members of the public structs, from the one list that c/generate.py writes from the headers (members.inc). Code that does the
// same with every member is written once, for a member, and covers a new one without a change. Internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <prologue/kernels/base/export.h>

namespace prologue {

// Members<Rope>::visit(visit, a, b) calls visit("style", a.style, b.style) and so on for each member, in the order of their
// declaration, until one call returns false.
template <class Struct>
struct Members;

}  // namespace prologue

#include <prologue/kernels/base/host/members.inc>

namespace prologue {

// Says which member of a struct it is, through members that are structs or arrays themselves.
struct MemberPath {
  const MemberPath* within = nullptr;
  const char* name = nullptr;  // null: an element of an array
  size_t index = 0;
};

// Returns a text like "rope.cos.row_stride" or "tensors[1].x". A pointer `data` has the name of the view that it is in: "rope.cos".
PROLOGUE_API std::string text_of(const MemberPath& path);

// Calls visit(path, members...) for each member that is no struct and no array, with that member of each object, until one call
// returns false.
template <class Visit, class First, class... Others>
constexpr bool visit_values(const Visit& visit, const MemberPath& path, First& first, Others&... others) {
  if constexpr (std::is_array_v<First>) {
    for (size_t i = 0; i < std::extent_v<First>; ++i) {
      if (!visit_values(visit, MemberPath{&path, nullptr, i}, first[i], others[i]...)) return false;
    }
    return true;
  } else if constexpr (std::is_class_v<First>) {
    const auto visit_member = [&](const char* name, auto&... members) {
      return visit_values(visit, MemberPath{&path, name, 0}, members...);
    };
    return Members<std::remove_const_t<First>>::visit(visit_member, first, others...);
  } else {
    return visit(path, first, others...);
  }
}

// Whether all members are equal. Pointers are not followed.
template <class Struct>
bool equal(const Struct& a, const Struct& b) {
  return visit_values([](const MemberPath&, const auto& x, const auto& y) { return x == y; }, MemberPath(), a, b);
}

}  // namespace prologue
