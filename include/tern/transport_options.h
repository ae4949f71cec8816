// Options of a transport by name, as in --transport_options=datagram_bytes=8900: for programs' command lines. Standard
// library only; a transport's type lists its options in OptionField objects (<tern/transport.h>).
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>

#include <tern/transport.h>

namespace tern {

namespace detail {

/// The fields of Options::fields(); an empty tuple if Options has no fields().
template <class Options>
constexpr auto option_fields() {
  if constexpr (requires { Options::fields(); }) {
    return Options::fields();
  } else {
    return std::tuple<>();
  }
}

inline std::string option_text(const std::string& value) { return value; }
inline std::string option_text(bool value) { return value ? "true" : "false"; }
template <std::unsigned_integral Value>
std::string option_text(Value value) {
  return std::to_string(value);
}

template <class Options>
std::string option_problem(const OptionField<Options, std::string>&, std::string_view) {
  return {};
}
template <class Options>
std::string option_problem(const OptionField<Options, bool>&, std::string_view text) {
  return text == "true" || text == "false" ? "" : "is neither true nor false";
}
template <class Options, std::unsigned_integral Value>
std::string option_problem(const OptionField<Options, Value>& field, std::string_view text) {
  const uint64_t max = std::min<uint64_t>(field.max, std::numeric_limits<Value>::max());
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (is_number && value >= field.min && value <= max) return {};
  return "is not a number from " + std::to_string(field.min) + " to " + std::to_string(max);
}

inline void set_option(std::string& value, std::string_view text) { value = text; }
inline void set_option(bool& value, std::string_view text) { value = text == "true"; }
template <std::unsigned_integral Value>
void set_option(Value& value, std::string_view text) {
  std::from_chars(text.data(), text.data() + text.size(), value);
}

/// Sets the option that `setting`, "name=value", names.
template <class Options>
std::string set_one_option(Options& options, std::string_view setting) {
  const size_t equals = setting.find('=');
  const std::string_view name = setting.substr(0, equals);
  std::string known, problem;
  const auto set_if_named = [&](const auto& field) {
    known.append(known.empty() ? "" : ", ").append(field.name);
    if (field.name != name) return false;
    if (equals == setting.npos) {
      problem = std::string(name) + " has no value: " + std::string(name) + "=VALUE";
      return true;
    }
    const std::string_view text = setting.substr(equals + 1);
    problem = option_problem(field, text);
    if (problem.empty()) {
      set_option(options.*field.member, text);
    } else {
      problem = std::string(setting) + " " + problem;
    }
    return true;
  };
  const bool is_known =
      std::apply([&](const auto&... field) { return (set_if_named(field) || ...); }, option_fields<Options>());
  if (is_known) return problem;
  return "'" + std::string(name) + "' is not an option of this transport; " +
         (known.empty() ? "it has none" : "choose from: " + known);
}

}  // namespace detail

/// Sets the options that `settings` names: "name=value,name=value"; "" names none. The result is empty, or one sentence
/// about the first wrong setting; the settings before it have been applied. A value has no comma.
template <class Options>
std::string set_options(Options& options, std::string_view settings) {
  while (!settings.empty()) {
    const size_t comma = settings.find(',');
    if (std::string problem = detail::set_one_option(options, settings.substr(0, comma)); !problem.empty()) {
      return problem;
    }
    if (comma == settings.npos) break;
    settings.remove_prefix(comma + 1);
  }
  return {};
}

/// The options that can be set by name, with their values in `options`: "name=value,name=value".
template <class Options>
std::string options_text(const Options& options) {
  std::string text;
  const auto append = [&](const auto& field) {
    text.append(text.empty() ? "" : ",").append(field.name).append("=");
    text.append(detail::option_text(options.*field.member));
  };
  std::apply([&](const auto&... field) { (append(field), ...); }, detail::option_fields<Options>());
  return text;
}

}  // namespace tern
