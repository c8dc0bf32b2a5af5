# shellcheck shell=sh
# AppArmor, in the guest: see systemd.sh, which comes before.

cd "$BOX" || exit 1
for name in boat oar; do
  printf 'profile %s flags=(attach_disconnected,mediate_deleted) {\n  file,\n  capability,\n  network,\n  mount,\n  signal,\n  ptrace,\n  deny /%s r,\n}\n' $name $name |
    apparmor_parser --replace --skip-cache
  echo "not for $name" >rootfs/$name
done
configure
sed -i 's/"process": {/"process": {"apparmorProfile": "boat",/' config.json
"$OCI" run -d four </dev/null >/dev/null 2>err
want "a container with a profile" "0 " echo "$? $(cat err)"
want "init has it" "boat (enforce)" cat "/proc/$("$OCI" state four | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')/attr/current"
want "exec --apparmor" "oar (enforce)
not for boat" "$OCI" exec --apparmor oar four sh -c 'cat /proc/self/attr/current /boat'
want "what a profile denies" "cat: can't open '/oar': Permission denied" "$OCI" exec --apparmor oar four cat /oar
want "a profile that is not loaded" "coracle-oci: exec in container four: apply AppArmor profile nope: it is not loaded, see aa-status(8): no such file or directory" \
  "$OCI" exec --apparmor nope four true
"$OCI" delete --force four
sed -i 's/"apparmorProfile": "boat"/"apparmorProfile": "nope"/' config.json
want "nor is one made" "coracle-oci: create container five: apply AppArmor profile nope: it is not loaded, see aa-status(8): no such file or directory" "$OCI" run five
want "SELinux, which is not there" "1" sh -c "sed -i 's/\"apparmorProfile\": \"nope\"/\"selinuxLabel\": \"a:b:c:s0\"/' config.json; $OCI run six 2>&1 | grep -c 'process.selinuxLabel \"a:b:c:s0\" is not supported: SELinux is not enabled'"
