#!/bin/sh
# In the guest: one part of the tests, see vm.sh.

# busybox may be a dynamic one there, which no test root file system can run.
mount --bind /b/busybox /bin/busybox

# suite NAME FLAG...: runs a test program, and shows of what it says only what is wrong.
suite() {
  name=$1 log=/var/tmp/$1.log
  shift
  mkdir -p "/var/tmp/$name" && cd "/var/tmp/$name" || exit 1
  # The guest's limit is enough.
  TMPDIR=/var/tmp "/b/$name.test" -test.v -test.timeout 0 "$@" >"$log" 2>&1
  status=$?
  [ $status = 0 ] || tail -n 30 "$log"
  grep -E '^(--- FAIL|    --- FAIL|panic)|_test.go|\.go:[0-9]+: ' "$log"
  echo "$name: $(grep -c -- '--- PASS' "$log") passed, $(grep -c -- '--- FAIL' "$log") failed"
  exit $status
}

# install_criu puts criu in PATH, as an installed one: checkpoints have to be tested here, and it knows the kernel.
install_criu() {
  printf '#!/bin/sh\nLD_LIBRARY_PATH=/b/criu exec /b/criu/criu "$@"\n' >/usr/local/bin/criu
  chmod +x /usr/local/bin/criu
}

# suites "PROGRAM PATTERN"...: runs tests of several test programs. None may be skipped, and each has to be there.
suites() {
  cp -r /b/bin /var/tmp/bin && cp /var/tmp/bin/test/*.test /b/busybox /var/tmp/ || exit
  export CORACLE_BIN=/var/tmp/bin CORACLE_UNTESTED=/var/tmp/untested
  mkdir -p /var/tmp/log && cd /var/tmp || exit
  bad=0
  for run; do
    log=/var/tmp/log/${run%% *}
    TMPDIR=/var/tmp "/var/tmp/${run%% *}.test" -test.v -test.timeout 0 -test.run "${run#* }" -test.skip TestDistributions >"$log" 2>&1 || {
      bad=1
      {
        grep -E '^ *--- FAIL' "$log"
        grep -E -A30 '^panic|^fatal error' "$log"
        grep -E -A8 '_test\.go:[0-9]+: ' "$log" | tail -n 300
      } | cut -c1-600
    }
    grep -E -A2 -- '--- SKIP' "$log" && bad=1
    for name in $(echo "${run#* }" | tr '|' ' '); do
      name=${name%%/*}
      grep -q -- "--- PASS: ${name%$}" "$log" || { echo "$name: no test of that name has passed"; bad=1; }
    done
    echo "${run%% *}: $(grep -c -- '--- PASS' "$log") passed, $(grep -c -- '--- FAIL' "$log") failed"
  done
  [ ! -s "$CORACLE_UNTESTED" ] || { echo "not tested:"; cat "$CORACLE_UNTESTED"; bad=1; }
  exit $bad
}

case $1 in
  engine | lc)
    skip=
    if [ "$(printf '6.3\n%s\n' "$(uname -r)" | sort -V | head -n1)" != 6.3 ]; then
      skip="id-mapped_bind_mounts|an_id-mapped_volume_in|a_volume_with_the_ids_of"
      echo "skipped: $skip, because tmpfs cannot be id-mapped before Linux 6.3"
    fi
    suite "$1" ${skip:+-test.skip "TestEngine.*/($skip)"}
    ;;
  # EROFS is mounted from files by Linux 6.12 and newer. Drivers are subtests of tests, or of their cases.
  snapshot) suite snapshot -test.run 'TestQuotas$|TestDriver|TestPrepare|TestManyLayers' -test.skip '/erofs|//erofs' ;;
  storage) exec sh /b/storage.sh ;;
  cgroups) suite cgroups ;;
  wireguard)
    modprobe wireguard && (suite wireguard) && suite overlay -test.run 'TestPacketsBetweenPods|TestForgedPackets|TestNothingLeaves|TestNodesConnectBy'
    ;;
  kubelet)
    cp -r /b/bin /var/tmp/bin || exit
    export CORACLE_BIN=/var/tmp/bin KUBELET_E2E_GUEST=/b/guest
    suite kubelet
    ;;
  cli) exec sh /b/cli.sh ;;
  oomkill) exec sh /b/oomkill.sh ;;
  integration)
    install_criu
    echo "skipped: TestDistributions.*, because the guest has no CNI plugins of its distribution"
    sctp='rules TestSCTP'
    modprobe sctp || { echo "skipped: TestSCTPAssociations, because the guest's kernel has no SCTP sockets"; sctp='rules TestSCTP$'; }
    suites 'integration TestKillWhileRunning/node|TestKillDuringOperations|TestExitInTheGap|TestTerminateAndStart|TestUpgrade|TestCheckpointAndRestore' \
      'network Test' "$sctp" 'reserve TestReserveDespiteSignals'
    ;;
  crashmatrix)
    install_criu
    suites 'crashmatrix TestFaultPoints'
    ;;
  cri) exec sh /b/cri.sh ;;
  critest)
    # Programs start faster from the guest's own disk.
    cp -r /b/bin /var/tmp/bin || exit
    # critest loads profiles through sudo, even as root.
    printf '#!/bin/sh\nexec "$@"\n' >/usr/local/bin/sudo
    chmod +x /usr/local/bin/sudo
    # The guest's limit is enough.
    CORACLE_BIN=/var/tmp/bin TMPDIR=/var/tmp exec /var/tmp/bin/test/critest -systemd -limit 24h -md -
    ;;
esac
