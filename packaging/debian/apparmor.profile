# Permits towpath to create user namespaces where AppArmor reserves that for programs with a
# profile, as on Ubuntu 24.04. It restricts nothing: towpath confines itself, and programs that it
# runs keep the rights of their user.
abi <abi/4.0>,
include <tunables/global>

profile towpath /usr/bin/towpath flags=(unconfined) {
  userns,

  # Site-specific additions.
  include if exists <local/towpath>
}
