"""Fault control: a program that started this broker injects faults, moves its clock and reads its contents."""
