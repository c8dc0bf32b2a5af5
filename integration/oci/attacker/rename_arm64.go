package main

const sysRenameat2 = 276
