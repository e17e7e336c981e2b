"""Packages of the wheel: the folders of the top level, each as a part of `polypool`."""

from setuptools import find_packages, setup

FOLDERS = ("aggregators", "encoders", "infra", "pipelines", "tasks")
packages = [package for folder in FOLDERS for package in find_packages(include=[folder, f"{folder}.*"])]

setup(
    packages=["polypool", "polypool.integrations", *(f"polypool.{package}" for package in packages)],
    package_dir={f"polypool.{folder}": folder for folder in FOLDERS},
)
